package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxBody is kube-apiserver's own limit, in bytes.
const maxBody = 3 << 20

const pods = "/api/v1/namespaces/default/pods"

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", version)
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/selfsubjectreviews", whoami)
	mux.HandleFunc("GET "+pods, s.list)
	mux.HandleFunc("POST "+pods, s.create)
	mux.HandleFunc("GET "+pods+"/{name}", s.get)
	mux.HandleFunc("GET "+pods+"/{name}/exec", s.exec)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	})
	return s.authenticate(mux)
}

func version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{
		"major": "1", "minor": "36", "gitVersion": "v1.36.3+execproxy-demo", "platform": "demo/demo",
	})
}

func whoami(w http.ResponseWriter, r *http.Request) {
	rv := Review{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}
	rv.Status.UserInfo = userOf(r)
	writeJSON(w, http.StatusCreated, rv)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	p, ok := s.store.get(r.PathValue("name"))
	if !ok {
		notFound(w, r.PathValue("name"))
		return
	}
	writeJSON(w, http.StatusOK, p)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	if on, _ := strconv.ParseBool(r.URL.Query().Get("watch")); on {
		s.watch(w, r)
		return
	}
	items, rv := s.store.list()
	writeJSON(w, http.StatusOK, PodList{
		APIVersion: "v1", Kind: "PodList", Metadata: Meta{ResourceVersion: strconv.Itoa(rv)}, Items: items,
	})
}

// watch sends what is there, or, with a resourceVersion, what came after it, and then each event as it happens.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	var (
		rv    int
		first []Event
		err   error
	)
	if at := r.URL.Query().Get("resourceVersion"); at != "" && at != "0" {
		if rv, err = strconv.Atoi(at); err != nil || rv < 0 {
			refuse(w, http.StatusBadRequest, "BadRequest", fmt.Sprintf("resourceVersion %q is not a number", at))
			return
		}
	} else {
		var items []Pod
		items, rv = s.store.list()
		for _, p := range items {
			first = append(first, Event{Type: "ADDED", Object: p})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	enc, flush := json.NewEncoder(w), http.NewResponseController(w).Flush
	send := func(events []Event) bool {
		for _, e := range events {
			if enc.Encode(e) != nil || flush() != nil {
				return false
			}
		}
		return true
	}
	if flush() != nil || !send(first) {
		return
	}
	for {
		events, err := s.store.since(r.Context(), rv)
		if err != nil || !send(events) {
			return
		}
		rv += len(events)
	}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		badBody(w, err)
		return
	}
	var p Pod
	if err := json.Unmarshal(body, &p); err != nil {
		refuse(w, http.StatusBadRequest, "BadRequest", "the body is not a pod: "+err.Error())
		return
	}
	if p.Kind != "Pod" || p.Metadata.Name == "" {
		refuse(w, http.StatusUnprocessableEntity, "Invalid", "kind must be Pod, metadata.name must be set")
		return
	}
	made, ok := s.store.create(p)
	if !ok {
		refuse(w, http.StatusConflict, "AlreadyExists", fmt.Sprintf("pods %q already exists", p.Metadata.Name))
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		t := time.NewTimer(s.o.Running)
		defer t.Stop()
		select {
		case <-t.C:
			s.store.run(made.Metadata.Name)
		case <-s.ctx.Done():
		}
	}()
	writeJSON(w, http.StatusCreated, made)
}

func notFound(w http.ResponseWriter, name string) {
	refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("pods %q not found", name))
}

func badBody(w http.ResponseWriter, err error) {
	if _, big := errors.AsType[*http.MaxBytesError](err); big {
		refuse(w, http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", fmt.Sprintf("limit is %d bytes", maxBody))
		return
	}
	refuse(w, http.StatusBadRequest, "BadRequest", "reading the body: "+err.Error())
}
