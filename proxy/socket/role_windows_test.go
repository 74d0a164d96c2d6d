package socket

// play has no roles here: the tests with processes play users, which Windows does not tell.
func play(string, []string) int { return 2 }
