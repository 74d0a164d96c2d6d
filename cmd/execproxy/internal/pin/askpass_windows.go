package pin

// keepDescriptors: on Windows a program inherits what it is given by name.
func keepDescriptors() {}
