package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/proxy/socket"
)

// The control socket speaks HTTP/1.1 and JSON, to this user's processes only.
// Its paths are this file's business; no path of an API socket ever is.
const (
	pathDocument = "/v1/document"
	pathStatus   = "/v1/status"
	pathStop     = "/v1/stop"
	pathReload   = "/v1/reload" // the key alone
	pathAnew     = "/v1/configuration"
)

// maxAsk holds whatever a client can say: an authority's PEM, which came in
// KUBERNETES_EXEC_INFO, in base64.
const maxAsk = 2 * clientauthentication.MaxInfo

// An Ask is what a plugin wants of a running proxy.
type Ask struct {
	// Server is the API server that the client means; a proxy in front of
	// another one refuses.
	Server string `json:"server,omitempty"`
	// LockFile is registered: the proxy ends when the last one comes free.
	LockFile string `json:"lockFile,omitempty"`
	// Loopback is the host:port that the client will call; empty for a client
	// that takes a proxyConfig.
	Loopback string `json:"loopback,omitempty"`
	// Direct asks for what the API server itself accepts, of a daemon that was started
	// to hand it out.
	Direct bool `json:"direct,omitempty"`
	// Client is the client's process; 0: not known.
	Client int `json:"client,omitempty"`
	// Interactive says that the plugin can ask its user.
	Interactive bool `json:"interactive,omitempty"`
	// Credential is what it got when it did.
	Credential *clientauthentication.Status `json:"credential,omitempty"`
	// Authority is the PEM that the client trusts there; empty: not known.
	Authority []byte `json:"authority,omitempty"`

	// Provider and Began are for the figures alone, and go beside the document that
	// a proxy of another version would refuse: who asks, and since when.
	Provider string    `json:"-"`
	Began    time.Time `json:"-"`
}

// Status is what `execproxy status` tells of one proxy.
type Status struct {
	ID                  string     `json:"id"`
	PID                 int        `json:"pid"`
	Version             string     `json:"version"`
	StartedAt           time.Time  `json:"startedAt"`
	Server              string     `json:"server"`
	Auth                string     `json:"auth"`
	Identity            string     `json:"identity"`
	Socket              string     `json:"socket"`
	Listeners           []string   `json:"listeners"`
	Life                string     `json:"life"`
	Locks               []string   `json:"locks"`
	Clients             int        `json:"clients"`
	Requests            uint64     `json:"requests"`
	InFlight            int        `json:"inFlight"`
	Signatures          uint64     `json:"signatures"`
	Dials               uint64     `json:"dials"`
	Handshakes          Handshakes `json:"handshakes"`
	CertificateNotAfter *time.Time `json:"certificateNotAfter,omitempty"`

	Key      *KeyStatus     `json:"key,omitempty"`
	Renewal  *RenewalStatus `json:"renewal,omitempty"`
	Reload   *ReloadStatus  `json:"reload,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`

	Metrics    string      `json:"metrics,omitempty"` // URL
	Obtentions []Obtention `json:"obtentions,omitempty"`
}

// Handshakes counts TLS handshakes with the API server. A full one costs a
// signature of the key.
type Handshakes struct {
	Full    uint64 `json:"full"`
	Resumed uint64 `json:"resumed"`
}

// KeyStatus tells of the private key that authenticates connections.
type KeyStatus struct {
	Home       string `json:"home"` // file, tpm or pkcs11
	Location   string `json:"location"`
	Kind       string `json:"kind"`
	Signatures uint64 `json:"signatures"` // of this key
	Failures   uint64 `json:"failures"`   // to sign
	Queued     int    `json:"queued"`     // signatures that wait for the home
	Reopened   uint64 `json:"reopened"`   // times that the home was lost and found again
}

// A refusal is an error told over the control socket.
type refusal struct {
	Message  string `json:"error"`
	Stopping bool   `json:"stopping,omitempty"`
	Login    bool   `json:"login,omitempty"` // the user may be able to help
}

func (r *refusal) Error() string { return r.Message }

// errEnding sends a plugin away to start the next proxy.
var errEnding = &refusal{Message: "the proxy is ending", Stopping: true}

// anew answers whoever asked for a reload.
type anew struct {
	Read bool `json:"read"` // there is something to read
}

// controlHandler answers on the control socket.
func (d *Daemon) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathDocument, func(w http.ResponseWriter, r *http.Request) {
		arrived := time.Now()
		var ask Ask
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsk))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&ask); err != nil {
			reply(w, http.StatusBadRequest, &refusal{Message: "unreadable request from the plugin; it is of another version; end the proxies of the old one with `execproxy stop --all`"})
			return
		}
		// Whoever asks waits this long, and takes a connection that breaks for a proxy that
		// ends. A plugin behind may be run meanwhile.
		_ = http.NewResponseController(w).SetWriteDeadline(arrived.Add(startTimeout))
		// Until the start is over it may fail, and take everybody's document with it.
		select {
		case <-d.ready:
		case <-r.Context().Done():
			return
		}
		ask.Provider, ask.Began = askedBy(r.URL.Query(), arrived)
		status, err := d.document(r.Context(), ask)
		d.obtentions.count(ask, err)
		if err != nil {
			var r *refusal
			if !errors.As(err, &r) {
				r = &refusal{Message: err.Error()}
			}
			reply(w, http.StatusConflict, r)
			return
		}
		reply(w, http.StatusOK, status)
	})
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, d.status())
	})
	look := func() {
		f := d.enter()
		defer f.leave()
		f.lookAtKey()
	}
	mux.HandleFunc("POST "+pathReload, func(w http.ResponseWriter, _ *http.Request) {
		look()
		reply(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("POST "+pathAnew, func(w http.ResponseWriter, _ *http.Request) {
		if d.opt.Reload == nil {
			look()
			reply(w, http.StatusOK, anew{})
			return
		}
		// A connection to the API server may be made meanwhile.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * reloadTimeout))
		if err := d.Reload("asked to"); err != nil {
			reply(w, http.StatusConflict, &refusal{Message: oneLine(err.Error())})
			return
		}
		reply(w, http.StatusOK, anew{Read: true})
	})
	mux.HandleFunc("POST "+pathStop, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, struct{}{})
		d.end(causeStop)
	})
	return mux
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the peer may be gone; nobody is left to tell
}

// errNobody means that no proxy accepts on a control socket.
var errNobody = errors.New("no proxy is running there")

// A controller speaks to one running proxy.
type controller struct {
	path   string // control socket
	client *http.Client
}

func newController(apiSocket string) *controller {
	path := controlPath(apiSocket)
	return &controller{path: path, client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return socket.Dial(ctx, path)
		},
	}}}
}

// call sends in and decodes the answer into out. A refusal comes back as one.
func (c *controller) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://execproxy"+path, body)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		if nobody(err) {
			return fmt.Errorf("%w (%s)", errNobody, c.path)
		}
		return fmt.Errorf("asking the proxy at %s: %w", c.path, err)
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode != http.StatusOK {
		r := &refusal{}
		if err := dec.Decode(r); err != nil || r.Message == "" {
			return fmt.Errorf("the proxy at %s answered %s", c.path, resp.Status)
		}
		return r
	}
	if err := dec.Decode(out); err != nil {
		return fmt.Errorf("reading the answer of the proxy at %s: %w", c.path, err)
	}
	return nil
}

// nobody tells a socket behind which no proxy is from one that is busy. A
// connection that breaks before an answer came from a proxy that was ending.
func nobody(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

// document asks for the session's document.
func (c *controller) document(ctx context.Context, ask Ask) (*clientauthentication.Status, error) {
	var s clientauthentication.Status
	if err := c.call(ctx, http.MethodPost, pathDocument+"?"+ask.figures(), ask, &s); err != nil {
		return nil, err
	}
	return &s, nil
}
