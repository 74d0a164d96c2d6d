//go:build linux

package integration

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// registry serves one image, under any name and tag, to one user (OCI distribution
// specification, pull). Its zero value refuses everybody.
type registry struct {
	mu             sync.Mutex
	user, password string
	manifest       descriptor
	blobs          map[string][]byte // by digest, the manifest too
	log            []string
}

// accept changes who may pull.
func (r *registry) accept(user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.user, r.password = user, password
}

// taken is who was served or refused what, since it was asked last.
func (r *registry) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

type imageManifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// load takes the image of an archive, and puts a file into it: whoever has the archive
// has neither the layer nor the configuration.
func (r *registry) load(archive, name string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	files := map[string][]byte{}
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if files[h.Name], err = io.ReadAll(t); err != nil {
			return err
		}
	}
	blob := func(d descriptor) []byte { return files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")] }
	var (
		index  struct{ Manifests []descriptor }
		m      imageManifest
		config map[string]any
	)
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		return fmt.Errorf("%s: not one image: %w", archive, err)
	}
	if err := json.Unmarshal(blob(index.Manifests[0]), &m); err != nil {
		return err
	}
	if err := json.Unmarshal(blob(m.Config), &config); err != nil {
		return err
	}
	var layer bytes.Buffer
	t := tar.NewWriter(&layer)
	if err := errors.Join(t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}), t.Close()); err != nil {
		return err
	}
	blobs := map[string][]byte{}
	add := func(media string, data []byte) descriptor {
		sum := sha256.Sum256(data)
		d := descriptor{media, "sha256:" + hex.EncodeToString(sum[:]), len(data)}
		blobs[d.Digest] = data
		return d
	}
	for _, l := range m.Layers {
		add(l.MediaType, blob(l))
	}
	d := add(m.Layers[0].MediaType, layer.Bytes())
	m.Layers = append(m.Layers, d)
	root := config["rootfs"].(map[string]any)
	root["diff_ids"] = append(root["diff_ids"].([]any), d.Digest)
	data, err := json.Marshal(config)
	if err != nil {
		return err
	}
	m.Config = add(m.Config.MediaType, data)
	if data, err = json.Marshal(m); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.manifest, r.blobs = add(m.MediaType, data), blobs
	return nil
}

var pulled = regexp.MustCompile(`^/v2/([a-z0-9/-]+)/(manifests|blobs)/([^/]+)$`)

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	m := pulled.FindStringSubmatch(req.URL.Path)
	if m == nil || req.Method != http.MethodGet && req.Method != http.MethodHead {
		http.NotFound(w, req)
		return
	}
	user, password, authenticated := req.BasicAuth()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !authenticated {
		user = "nobody"
	}
	if r.user == "" || user != r.user || password != r.password {
		r.log = append(r.log, user+" is refused "+m[2]+" of "+m[1])
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return
	}
	what := descriptor{MediaType: "application/octet-stream", Digest: m[3]}
	if m[2] == "manifests" {
		what = r.manifest
	}
	data, ok := r.blobs[what.Digest]
	if !ok {
		http.NotFound(w, req)
		return
	}
	r.log = append(r.log, user+" gets "+m[2]+" of "+m[1])
	w.Header().Set("Content-Type", what.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Header().Set("Docker-Content-Digest", what.Digest)
	if req.Method == http.MethodGet {
		_, _ = w.Write(data)
	}
}
