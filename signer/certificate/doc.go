// Package certificate is what every home of keys does with the certificates of its keys: it
// reads a chain from a PEM file, leaf first, sees to it that it is the key's and valid now,
// tells what is odd about it, and stores the next one in its place.
//
// What is wrong with a file is an [*Error] that names the file and the cure. The package knows
// no private keys, and keeps those that it finds in the file of a chain.
package certificate
