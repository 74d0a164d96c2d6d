// Package process ends the programs that we start, and waits for the end of those that are not
// our children.
package process
