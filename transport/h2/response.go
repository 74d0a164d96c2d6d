package h2

import (
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// newResponse makes an answer of its header, ":status" first. Its Body is nil where one is
// to come.
func newResponse(fields []Field, end, head bool) *http.Response {
	code, _ := strconv.Atoi(fields[0].Value) // three digits: the connection has looked
	res := &http.Response{
		Status:     fields[0].Value,
		StatusCode: code,
		Proto:      "HTTP/2.0",
		ProtoMajor: 2,
		Header:     make(http.Header, len(fields)-1),
	}
	if text := http.StatusText(code); text != "" {
		res.Status += " " + text
	}
	values := make([]string, len(fields)-1) // all of them at once
	for i := range fields[1:] {
		f := &fields[1+i]
		name := canonical(f.Name)
		if name == "Trailer" {
			announce(res, f.Value)
			continue
		}
		if had := res.Header[name]; had != nil {
			res.Header[name] = append(had, f.Value)
			continue
		}
		values[i] = f.Value
		res.Header[name] = values[i : i+1 : i+1]
	}
	res.ContentLength = -1
	if v := res.Header["Content-Length"]; len(v) == 1 {
		if n, err := strconv.ParseUint(v[0], 10, 63); err == nil {
			res.ContentLength = int64(n)
		}
	} else if len(v) == 0 && end && !head {
		res.ContentLength = 0
	}
	if end {
		res.Body = http.NoBody
	}
	return res
}

// announce notes the names of trailer fields that are to come.
func announce(res *http.Response, names string) {
	for name := range strings.SplitSeq(names, ",") {
		name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
		if !httpguts.ValidTrailerHeader(name) {
			continue
		}
		if res.Trailer == nil {
			res.Trailer = make(http.Header)
		}
		res.Trailer[name] = nil
	}
}
