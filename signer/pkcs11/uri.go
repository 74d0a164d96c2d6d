package pkcs11

import (
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"

	pkcs11uri "github.com/stefanberger/go-pkcs11uri"
)

// redacted stands for a PIN wherever a URI is printed.
const redacted = "REDACTED"

// The attributes of RFC 7512, section 2.3, in the order in which they are printed.
var (
	pathAttributes = []string{"token", "manufacturer", "model", "serial", "slot-id", "slot-description", "slot-manufacturer",
		"library-description", "library-manufacturer", "library-version", "object", "id", "type"}
	queryAttributes = []string{"module-name", "module-path", "pin-source", "pin-value"}
)

// URI is a PKCS#11 URI (RFC 7512). However it is printed, its PIN does not show.
//
// The attribute type is read and has no effect: a URI that names a certificate or a public
// key by object and id names the private key beside it, too.
type URI struct {
	path, query map[string]string // decoded
}

// ParseURI reads a URI. Its errors name the attribute and never show a value, which may be
// a PIN in the wrong place.
func ParseURI(s string) (*URI, error) {
	rest, ok := strings.CutPrefix(s, "pkcs11:")
	if !ok {
		return nil, uriError(`it does not begin with "pkcs11:"`, "write pkcs11:token=LABEL;object=LABEL")
	}
	path, query, hasQuery := strings.Cut(rest, "?")
	if err := checkAttributes(path, ";", pathAttributes, "&"); err != nil {
		return nil, err
	}
	if hasQuery {
		if err := checkAttributes(query, "&", queryAttributes, "/?|"); err != nil {
			return nil, err
		}
	}
	parsed := pkcs11uri.New()
	if err := parsed.Parse(s); err != nil {
		// What checkAttributes lets through and Parse does not is about single values. The
		// text of err may hold one.
		return nil, uriError("an attribute has a value that it cannot have",
			"see that slot-id and library-version are numbers, type is private, public or cert, module-path is absolute, and there is one of pin-source and pin-value")
	}
	u := &URI{path: map[string]string{}, query: map[string]string{}}
	for _, name := range pathAttributes {
		if v, ok := parsed.GetPathAttribute(name, false); ok {
			u.path[name] = v
		}
	}
	for _, name := range queryAttributes {
		if v, ok := parsed.GetQueryAttribute(name, false); ok {
			u.query[name] = v
		}
	}
	if v, ok := u.path["slot-id"]; ok {
		if _, err := strconv.ParseUint(v, 10, strconv.IntSize-1); err != nil {
			return nil, uriError("slot-id is no slot number", "write it in decimal digits, or name the token by its label or serial")
		}
	}
	return u, nil
}

// checkAttributes looks at one part of a URI: its names, and the characters of its values
// (RFC 7512, section 2.3). An attribute of the path that is not known would match nothing,
// so it is an error; one of the query would be ignored, and may be the vendor's.
func checkAttributes(part, separator string, known []string, more string) error {
	if part == "" {
		return nil
	}
	seen := map[string]bool{}
	for attribute := range strings.SplitSeq(part, separator) {
		name, value, ok := strings.Cut(attribute, "=")
		if !ok {
			return uriError("one of its parts is no name=value", "separate attributes with ; before the question mark and with & behind it")
		}
		if !isKnown(known, name) {
			if separator == "&" && isName(name) {
				if isKnown(pathAttributes, name) {
					return uriError(name+" stands behind the question mark", "write it before it")
				}
				continue
			}
			if isKnown(queryAttributes, name) {
				return uriError(name+" stands before the question mark", "write it behind it: pkcs11:token=LABEL?"+name+"=…")
			}
			if !isName(name) || len(name) > 32 {
				name = "the name of an attribute"
			}
			return uriError(name+" is not known", "use the attributes of RFC 7512: "+strings.Join(known, ", "))
		}
		if seen[name] {
			return uriError(name+" stands there twice", "name it once")
		}
		seen[name] = true
		if !escaped(value, more) {
			return uriError(name+" has a character that must be escaped", "write it as % and two hexadecimal digits: a space is %20")
		}
	}
	return nil
}

func isKnown(known []string, name string) bool {
	for _, k := range known {
		if k == name {
			return true
		}
	}
	return false
}

func isName(s string) bool {
	for _, c := range []byte(s) {
		if !letterOrDigit(c) && c != '-' && c != '_' {
			return false
		}
	}
	return s != ""
}

// escaped tells whether s has only characters that RFC 7512 allows, and more.
func escaped(s, more string) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case letterOrDigit(c) || strings.IndexByte("-._~:[]@!$'()*+,=", c) >= 0 || strings.IndexByte(more, c) >= 0:
		case c == '%' && i+2 < len(s) && hexDigit(s[i+1]) && hexDigit(s[i+2]):
			i += 2
		default:
			return false
		}
	}
	return true
}

func letterOrDigit(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func uriError(problem, cure string) *Error {
	return &Error{What: "PKCS#11 URI", Err: ErrURI, Detail: problem, Cure: cure}
}

// Token returns the label of the token, "" for any.
func (u URI) Token() string { return u.path["token"] }

// Serial returns the serial number of the token, "" for any.
func (u URI) Serial() string { return u.path["serial"] }

// Object returns the label of the key, "" for any.
func (u URI) Object() string { return u.path["object"] }

// ID returns the CKA_ID of the key, nil for any.
func (u URI) ID() []byte {
	if id := u.path["id"]; id != "" {
		return []byte(id)
	}
	return nil
}

// ModulePath returns where the PKCS#11 library is, "" where the URI does not tell.
func (u URI) ModulePath() string { return u.query["module-path"] }

// ModuleName returns the name of the PKCS#11 library: softhsm2 for libsofthsm2.so.
func (u URI) ModuleName() string { return u.query["module-name"] }

// PINSource tells where the PIN is: a path, a file: URI, or what the program that reads it
// agrees on. "" where the URI does not tell.
func (u URI) PINSource() string { return u.query["pin-source"] }

// PINValue returns the PIN itself, where the URI holds one. It should not: command lines and
// kubeconfigs are read by others.
func (u URI) PINValue() (string, bool) {
	v, ok := u.query["pin-value"]
	return v, ok
}

// Pin returns a URI for the object with this label and this id on the same token.
func (u URI) Pin(object string, id []byte) *URI {
	return u.with(map[string]string{"object": object, "id": string(id)})
}

// with returns a URI with other attributes in the path; "" removes one.
func (u URI) with(path map[string]string) *URI {
	out := &URI{path: map[string]string{}, query: u.query} // nobody writes to the query
	for k, v := range u.path {
		out.path[k] = v
	}
	for k, v := range path {
		if out.path[k] = v; v == "" {
			delete(out.path, k)
		}
	}
	return out
}

// String returns the URI in a canonical order, its PIN replaced.
func (u URI) String() string { return u.text(queryAttributes) }

// text returns the URI with these attributes of the query.
func (u URI) text(query []string) string {
	var b strings.Builder
	b.WriteString("pkcs11:")
	separator := ""
	for _, name := range pathAttributes {
		if v, ok := u.path[name]; ok {
			b.WriteString(separator + name + "=" + escapePath(v, name == "id"))
			separator = ";"
		}
	}
	separator = "?"
	for _, name := range query {
		if v, ok := u.query[name]; ok {
			if name == "pin-value" {
				v = redacted
			}
			b.WriteString(separator + name + "=" + escape(v, "/"))
			separator = "&"
		}
	}
	return b.String()
}

// Format writes String whatever the verb: none may show the PIN.
func (u URI) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.String()) }

// MarshalText returns String, so that encoders do not show the PIN either.
func (u URI) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

func escapePath(s string, all bool) string {
	if all {
		return escape(s, "\x00")
	}
	return escape(s, "")
}

// escape writes s with percent signs; with more == "\x00" all of it.
func escape(s, more string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if more != "\x00" && (letterOrDigit(c) || strings.IndexByte("-._~:@+,", c) >= 0 || strings.IndexByte(more, c) >= 0) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// moduleDirectories are where a module-name is looked for.
var moduleDirectories = []string{
	"/usr/lib/x86_64-linux-gnu/pkcs11", "/usr/lib/aarch64-linux-gnu/pkcs11", "/usr/lib64/pkcs11", "/usr/lib/pkcs11", "/usr/local/lib/pkcs11",
	"/usr/lib/x86_64-linux-gnu/softhsm", "/usr/lib/aarch64-linux-gnu/softhsm", "/usr/lib64/softhsm", "/usr/lib/softhsm", "/usr/local/lib/softhsm",
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
	"/opt/homebrew/lib/pkcs11", "/opt/homebrew/lib/softhsm", "/opt/homebrew/lib",
}

// modulePath returns the library to load; fallback is for a URI that names none.
func (u URI) modulePath(fallback string) (string, error) {
	path, name := u.ModulePath(), u.ModuleName()
	switch {
	case path != "" && name == "":
		return path, nil
	case name != "":
		find := pkcs11uri.New()
		find.SetModuleDirectories(moduleDirectories)
		find.SetAllowAnyModule(true)
		find.SetQueryAttributeUnencoded("module-name", []byte(name))
		if path != "" {
			find.SetQueryAttributeUnencoded("module-path", []byte(path))
		}
		found, err := find.GetModule()
		if err != nil {
			return "", &Error{What: "module " + name, Err: ErrModule, Detail: "no library of this name in the usual places",
				Cure: "name its file: module-path=/…/lib" + name + ".so"}
		}
		return found, nil
	case fallback != "":
		return fallback, nil
	case runtime.GOOS == "darwin":
		return "p11-kit-proxy.dylib", nil
	case runtime.GOOS == "windows":
		return "", &Error{What: "module", Err: ErrModule, Detail: "none is named", Cure: "name the vendor's DLL: module-path=C:/…"}
	}
	return "p11-kit-proxy.so", nil
}
