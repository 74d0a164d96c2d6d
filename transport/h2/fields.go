package h2

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

var (
	errTrailer        = errors.New("http2: invalid HTTP trailer")
	errHeaderTooLarge = errors.New("http2: request header list larger than the server's limit (SETTINGS_MAX_HEADER_LIST_SIZE)")
)

var fieldLists = sync.Pool{New: func() any { return new([]Field) }}

func putFields(fields *[]Field) {
	if fields == nil {
		return
	}
	clear(*fields) // the strings are secrets, too
	*fields = (*fields)[:0]
	fieldLists.Put(fields)
}

// requestFields is the header of r (RFC 9113 section 8.3.1). Its errors are the
// request's own fault, and begin with "http2: invalid". Give the list back with
// putFields.
func requestFields(r *http.Request) (*[]Field, error) {
	authority, err := authorityOf(r)
	if err != nil {
		return nil, err
	}
	path, err := pathOf(r.URL, authority)
	if err != nil {
		return nil, err
	}
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(method) || method == http.MethodConnect {
		return nil, fmt.Errorf("http2: invalid method %q", r.Method)
	}
	if err := hopByHop(r.Header); err != nil {
		return nil, err
	}
	list := fieldLists.Get().(*[]Field)
	fields := append((*list)[:0],
		Field{Name: ":authority", Value: authority},
		Field{Name: ":method", Value: method},
		// A query is other each time, or holds what nobody should keep.
		Field{Name: ":path", Value: path, Sensitive: strings.Contains(path, "?")},
		Field{Name: ":scheme", Value: r.URL.Scheme},
	)
	length := bodyLength(r)
	for name, values := range r.Header {
		lower, ok := lowerName(name)
		if !ok {
			err = fmt.Errorf("http2: invalid HTTP header name %q", name)
			break
		}
		if slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) }) {
			err = fmt.Errorf("http2: invalid HTTP header value for header %q", name) // the value may be a secret
			break
		}
		fields = appendField(fields, lower, values, length)
	}
	var trailer string
	if err == nil && len(r.Trailer) > 0 {
		if trailer, err = trailerNames(r.Trailer); err == nil {
			fields = append(fields, Field{Name: "trailer", Value: trailer})
		}
	}
	if length > 0 || length == 0 && (method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch) {
		fields = append(fields, Field{Name: "content-length", Value: strconv.FormatInt(length, 10)})
	}
	*list = fields
	if err != nil {
		putFields(list)
		return nil, err
	}
	return list, nil
}

// appendField leaves out what HTTP/2 says in other ways, or not at all.
func appendField(fields []Field, name string, values []string, length int64) []Field {
	never := false // put into HPACK's table
	switch name {
	case "host", "content-length", "connection", "proxy-connection", "transfer-encoding", "upgrade", "keep-alive", "trailer":
		return fields
	case "te":
		if httpguts.HeaderValuesContainsToken(values, "trailers") {
			fields = append(fields, Field{Name: name, Value: "trailers"})
		}
		return fields
	case "user-agent":
		if len(values) == 0 || values[0] == "" {
			return fields
		}
		values = values[:1]
	case "cookie":
		return appendCookies(fields, values)
	case "authorization", "proxy-authorization", "x-amz-date", "date":
		never = true // a secret, or another one each time
	case "x-amz-content-sha256":
		never = length != 0
	}
	for _, v := range values {
		fields = append(fields, Field{Name: name, Value: v, Sensitive: never})
	}
	return fields
}

// appendCookies: one field for each (section 8.2.3).
func appendCookies(fields []Field, values []string) []Field {
	for _, v := range values {
		for v != "" {
			var one string
			one, v, _ = strings.Cut(v, ";")
			v = strings.TrimLeft(v, " ")
			if one != "" {
				fields = append(fields, Field{Name: "cookie", Value: one, Sensitive: true})
			}
		}
	}
	return fields
}

// authorityOf is the Host that HTTP/1.1 would have.
func authorityOf(r *http.Request) (string, error) {
	if r.URL == nil {
		return "", errors.New("http2: invalid request: it has no URL")
	}
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	authority, err := httpguts.PunycodeHostPort(host)
	if err != nil {
		return "", fmt.Errorf("http2: invalid Host: %w", err)
	}
	if !httpguts.ValidHostHeader(authority) {
		return "", errors.New("http2: invalid Host header")
	}
	return withoutZone(authority), nil
}

// withoutZone takes the zone from an IPv6 literal: it means something on this machine
// only (RFC 6874 section 4).
func withoutZone(host string) string {
	if !strings.HasPrefix(host, "[") {
		return host
	}
	end := strings.LastIndexByte(host, ']')
	zone := strings.IndexByte(host, '%')
	if zone < 0 || end < zone {
		return host
	}
	return host[:zone] + host[end:]
}

// pathOf is the URL's path and query as they are. A URL.Opaque that begins with "//" has
// the scheme before it, which is how net/url tells it from a path.
func pathOf(u *url.URL, authority string) (string, error) {
	path := u.RequestURI()
	if !isPath(path) {
		path = strings.TrimPrefix(path, u.Scheme+"://"+authority)
	}
	if !isPath(path) || !httpguts.ValidHeaderFieldValue(path) {
		return "", fmt.Errorf("http2: invalid request :path %q", path)
	}
	return path, nil
}

func isPath(s string) bool { return strings.HasPrefix(s, "/") || s == "*" }

// hopByHop refuses what a connection of its own would be needed for.
func hopByHop(h http.Header) error {
	for _, name := range [...]string{"Upgrade", "Transfer-Encoding", "Connection"} {
		values := h[name]
		switch {
		case len(values) == 0, len(values) == 1 && values[0] == "":
		case len(values) == 1 && name == "Connection" && (strings.EqualFold(values[0], "close") || strings.EqualFold(values[0], "keep-alive")):
		case len(values) == 1 && name != "Connection" && values[0] == "chunked":
		default:
			return fmt.Errorf("http2: invalid %s request header: %q", name, values)
		}
	}
	return nil
}

func trailerNames(h http.Header) (string, error) {
	names := make([]string, 0, len(h))
	for name := range h {
		name = http.CanonicalHeaderKey(name)
		switch name {
		case "Transfer-Encoding", "Trailer", "Content-Length":
			return "", fmt.Errorf("http2: invalid Trailer key %q", name)
		}
		if !httpguts.ValidHeaderFieldName(name) {
			return "", fmt.Errorf("http2: invalid HTTP trailer name %q", name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ","), nil
}

// bodyLength is 0 for none, -1 for one whose length nobody knows.
func bodyLength(r *http.Request) int64 {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return 0
	case r.ContentLength != 0:
		return max(r.ContentLength, -1)
	}
	return -1
}

// fits reports a header that the server has said it would not take.
func (c *Conn) fits(fields []Field) error {
	size := uint64(0)
	for i := range fields {
		size += uint64(fields[i].Size())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if size > uint64(c.peerHeader) {
		return errHeaderTooLarge
	}
	return nil
}

// lowerName reports false for what is no field name.
func lowerName(name string) (string, bool) {
	l := lower(name)
	return l, validName(l)
}
