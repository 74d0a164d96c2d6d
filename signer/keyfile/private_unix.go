//go:build !windows

package keyfile

const private = true // the mode tells who may read a file
