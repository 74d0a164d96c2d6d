package pin

import "os"

// HasTerminal reports a console, on which the user could be asked.
func HasTerminal() bool {
	f, err := os.OpenFile("CONIN$", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}
