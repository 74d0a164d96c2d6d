package header

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/execproxy/execproxy/signer"
)

// Signer sets header fields. It implements [signer.FieldSigner]. It does not look at the
// body. It never shows a value: not in errors, not when it is printed.
type Signer struct {
	fields []field
	files  bool // there are values in files
}

type field struct {
	name  string // canonical
	low   string // the same in lower case
	value string
	file  *file // instead of value
}

// New returns a Signer for fields of the form "Name=value" or "Name=@file". A value that
// begins with "@" is written with "@@". A name that is there more than once gets several
// values, in order. Each file is read once, so that what is wrong with it comes out now.
//
// Fields that belong to the connection or to the message itself (Host, Connection,
// Content-Length and so on) are refused.
func New(fields []string) (*Signer, error) {
	s := &Signer{}
	for i, spec := range fields {
		f, err := parse(spec)
		if err != nil {
			return nil, fmt.Errorf("header field %d: %w", i+1, err)
		}
		if f.file != nil {
			if _, err := f.file.read(); err != nil {
				return nil, err
			}
			s.files = true
		}
		s.fields = append(s.fields, f)
	}
	if len(s.fields) == 0 {
		return nil, errors.New("header: no fields: set --header Name=value or Name=@file")
	}
	return s, nil
}

// parse reads one field. What does not look like one may be a secret in the wrong place, so
// errors quote nothing but names of known fields.
func parse(spec string) (f field, err error) {
	name, value, ok := strings.Cut(spec, "=")
	if !ok || !validName(name) {
		return f, errors.New("want Name=value or Name=@file, with a '=' and not a ':' after the name")
	}
	f.name = http.CanonicalHeaderKey(name)
	f.low = strings.ToLower(name)
	if because := refused(f.name); because != "" {
		return f, fmt.Errorf("%s %s", f.name, because)
	}
	switch path, isFile := strings.CutPrefix(value, "@"); {
	case isFile && strings.HasPrefix(path, "@"):
		value = path
	case isFile:
		if path == "" {
			return f, errors.New("no file name after the '@'")
		}
		f.file = &file{name: f.name, path: path}
		return f, nil
	}
	if f.value, err = clean(value); err != nil {
		return f, fmt.Errorf("value %w", err)
	}
	return f, nil
}

// SignRequest returns the fields. It fails with a *[FileError] where a file has no usable
// value now.
func (s *Signer) SignRequest(context.Context, *signer.Request) (http.Header, error) {
	h := make(http.Header, len(s.fields))
	for _, f := range s.fields {
		value := f.value
		if f.file != nil {
			var err error
			if value, err = f.file.read(); err != nil {
				return nil, err
			}
		}
		h[f.name] = append(h[f.name], value)
	}
	return h, nil
}

// SignFields is SignRequest for fields, see [signer.FieldSigner]. ok is false where a value
// comes from a file: every request has to look whether the file changed, and a file system
// may take its time.
func (s *Signer) SignFields(_ *signer.Request, _ []signer.Field, out *signer.Fields) (ok bool, err error) {
	if s.files {
		return false, nil
	}
	for i := range s.fields {
		out.Add(s.fields[i].low, s.fields[i].value)
	}
	return true, nil
}

// String tells the names of the fields.
func (s *Signer) String() string {
	names := make([]string, 0, len(s.fields))
	for _, f := range s.fields {
		names = append(names, f.name)
	}
	return "headers " + strings.Join(names, ", ")
}

// GoString is String.
func (s *Signer) GoString() string { return s.String() }

// refused tells why a field, canonical, cannot be set.
func refused(name string) (because string) {
	switch name {
	case "Host":
		return "is the server's name: set the server instead"
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return "belongs to the connection and would not arrive"
	case "Expect", "Accept-Encoding", "Range", "Date", "Via", "Forwarded":
		return "belongs to each request alone"
	}
	for _, prefix := range []string{"Proxy-", "Content-", "Sec-Websocket-", "If-"} {
		if strings.HasPrefix(name, prefix) {
			return "belongs to each request alone"
		}
	}
	return ""
}

// validName tells whether a field name is a token (RFC 9110, section 5.6.2).
func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0:
			return false
		}
	}
	return name != ""
}

// maxValue is what servers take without complaint, and then some.
const maxValue = 64 << 10

// clean trims a value as it would be trimmed on the wire, and refuses what is none (RFC
// 9110, section 5.5).
func clean(value string) (string, error) {
	value = strings.Trim(value, " \t")
	if value == "" {
		return "", errors.New("is empty")
	}
	if len(value) > maxValue {
		return "", fmt.Errorf("is longer than %d bytes", maxValue)
	}
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\n' || c == '\r':
			return "", errors.New("has more than one line")
		case c < ' ' && c != '\t' || c == 0x7f:
			return "", errors.New("has a control character")
		}
	}
	return value, nil
}
