package keyfile

import (
	"fmt"

	"github.com/execproxy/execproxy/signer/certificate"
)

const maxFile = certificate.MaxFile

// read reads a file, and tells who else may do so where it holds a key.
func read(what, path string) (s source, warning string, err error) {
	text, info, err := certificate.ReadFile(what, path)
	if err != nil {
		return source{}, "", err
	}
	if mode := info.Mode().Perm(); what == "key" && private && mode&0o077 != 0 {
		warning = fmt.Sprintf("key file %s: readable by others (mode %04o): chmod 600 %s", path, mode, path)
	}
	return source{path: path, pem: text}, warning, nil
}
