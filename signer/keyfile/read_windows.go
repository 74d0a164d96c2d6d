package keyfile

const (
	nonblock = 0
	private  = false // ACLs decide, and the mode says nothing about them
)
