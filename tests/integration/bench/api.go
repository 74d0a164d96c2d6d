package main

import (
	"fmt"
	"net/http"
	"strings"
)

// What the API server serves.
const (
	smallPath = "/api/v1/namespaces/default/configmaps/small"
	listPath  = "/api/v1/namespaces/default/configmaps"
	watchPath = listPath + "?watch=1"
	eventPath = "/bench/event" // POST: one event to all watches

	smallSize = 2 << 10
	listSize  = 1 << 20

	// A query says how a body that is signed must come.
	hashedPath   = listPath + "?payload=hashed"
	unsignedPath = listPath + "?payload=unsigned"
)

// createdBody is the answer to a body.
const createdBody = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}` + "\n"

const bookmark = `{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"1"}}}` + "\n"

// requestHead is what the API server looks at.
type requestHead struct {
	method, path  string
	authorization string
	hash          string // X-Amz-Content-Sha256
	length        int    // -1: not said
}

// answer is a whole one, always the same bytes.
type answer struct {
	status int
	body   []byte
	watch  bool // goes on with each event
	event  bool // sends one
}

// api answers from prepared bytes. It asks for a client certificate or, loosely,
// for a SigV4 signature: what verifying costs is not measured here.
type api struct {
	small, list, created, discovery, resources, noGroups []byte
	watchers                                             watchers
}

func newAPI() *api {
	object := func(name string, size int) string {
		o := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"` + name + `","namespace":"default"},"data":{"text":"`
		return o + strings.Repeat("x", size-len(o)-len(`"}}`)) + `"}}`
	}
	var list strings.Builder
	list.WriteString(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`)
	for list.Len() < listSize-2*smallSize {
		list.WriteString(object("item", smallSize) + ",")
	}
	list.WriteString(object("last", listSize-list.Len()-len("]}")) + "]}")
	return &api{
		small:     []byte(object("small", smallSize)),
		list:      []byte(list.String()),
		created:   []byte(createdBody),
		discovery: []byte(`{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}`),
		resources: []byte(`{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"],"shortNames":["cm"]}]}`),
		noGroups:  []byte(`{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`),
		watchers:  watchers{all: map[watcher]struct{}{}},
	}
}

// answer decides on a request whose body, of the given length, has come.
func (a *api) answer(h *requestHead, certified bool, body int) answer {
	signed := strings.HasPrefix(h.authorization, "AWS4-HMAC-SHA256 Credential=")
	if !certified && !signed {
		return refuse(http.StatusUnauthorized, "neither a client certificate nor a signature")
	}
	if h.length >= 0 && h.length != body {
		return refuse(http.StatusBadRequest, fmt.Sprintf("a body of %d bytes, said to be %d", body, h.length))
	}
	path, query, _ := strings.Cut(h.path, "?")
	if h.method == http.MethodPost {
		switch {
		case path == eventPath:
			return answer{status: http.StatusOK, body: a.created, event: true}
		case path != listPath:
			return refuse(http.StatusNotFound, "not found")
		case signed && (query == "payload=unsigned") != (h.hash == "UNSIGNED-PAYLOAD"):
			return refuse(http.StatusBadRequest, fmt.Sprintf("X-Amz-Content-Sha256 %q where the query is %q", h.hash, query))
		}
		return answer{status: http.StatusOK, body: a.created}
	}
	switch path {
	case smallPath:
		return answer{status: http.StatusOK, body: a.small}
	case listPath:
		if query == "watch=1" {
			return answer{status: http.StatusOK, body: []byte(bookmark), watch: true}
		}
		return answer{status: http.StatusOK, body: a.list}
	case "/api":
		return answer{status: http.StatusOK, body: a.discovery}
	case "/apis":
		return answer{status: http.StatusOK, body: a.noGroups}
	case "/api/v1":
		return answer{status: http.StatusOK, body: a.resources}
	}
	return refuse(http.StatusNotFound, "not found")
}

func refuse(status int, why string) answer { return answer{status: status, body: []byte(why + "\n")} }

// Fields as kube-apiserver sends them.
const (
	auditID      = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	cacheControl = "no-cache, private"
)
