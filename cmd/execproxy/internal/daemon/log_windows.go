package daemon

import "os"

func whoseLog(*os.File) (problem string) { return "" }
