package certificate

import (
	"io/fs"
	"os"
)

const nonblock = 0

func keepOwner(*os.File, fs.FileInfo) error { return nil }

func syncDir(string) {}
