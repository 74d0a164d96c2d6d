package keyfile

const private = false // ACLs decide who may read a file, and the mode says nothing about them
