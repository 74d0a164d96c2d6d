package enroll

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// api is certificates.k8s.io/v1 with all that this package may lean on: strict about what it
// is sent, true in its watches, and able to sign.
type api struct {
	t *testing.T

	mu       sync.Mutex
	version  int
	oldest   int // versions before are too old to watch from
	objects  map[string]*stored
	history  []change
	news     chan struct{} // closed and replaced with each change
	requests []string      // "POST NAME", "LIST NAME", "GET NAME", "WATCH NAME VERSION"
	ca       *ecdsa.PrivateKey
	caCert   *x509.Certificate

	// What a test wants to be otherwise.
	user      string
	forbidden map[string]bool // verbs
	signs     bool            // at once after approval
	approves  bool            // at once
	prefix    string
	before    func(verb string, w http.ResponseWriter, r *http.Request) (done bool)
	issue     func(csr *x509.CertificateRequest, c *x509.Certificate) []byte
}

// stored is written apart from the product's own types: a field that both get wrong would
// else pass.
type stored struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name              string           `json:"name"`
		UID               string           `json:"uid,omitempty"`
		ResourceVersion   string           `json:"resourceVersion,omitempty"`
		CreationTimestamp *string          `json:"creationTimestamp,omitempty"`
		ManagedFields     []map[string]any `json:"managedFields,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Request           string       `json:"request"` // base64
		SignerName        string       `json:"signerName"`
		ExpirationSeconds *json.Number `json:"expirationSeconds,omitempty"`
		Usages            []string     `json:"usages"`
		Username          string       `json:"username,omitempty"`
	} `json:"spec"`
	Status storedStatus `json:"status"`
}

type storedStatus struct {
	Conditions  []map[string]any `json:"conditions,omitempty"`
	Certificate []byte           `json:"certificate,omitempty"`
}

type change struct {
	version int
	name    string
	event   []byte
}

func newAPI(t *testing.T) *api {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster-ca"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(50, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &api{t: t, version: 100, objects: map[string]*stored{}, news: make(chan struct{}), ca: key, caCert: cert, user: "jane", forbidden: map[string]bool{}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const base = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	a.mu.Lock()
	prefix := a.prefix
	a.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.Path, prefix+base)
	if !ok {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(404)
		_, _ = io.WriteString(w, "404 page not found\n")
		return
	}
	if r.Header.Get("Accept") != "application/json" {
		a.t.Errorf("Accept: %q", r.Header.Get("Accept"))
	}
	query := r.URL.Query()
	name, verb := strings.TrimPrefix(path, "/"), "get"
	switch {
	case r.Method == "POST" && path == "" && len(query) == 0:
		verb = "create"
	case r.Method == "GET" && path == "":
		if name, ok = strings.CutPrefix(query.Get("fieldSelector"), "metadata.name="); !ok || name == "" {
			a.t.Errorf("list of everything: %s", r.URL)
		}
		if verb = "list"; query.Get("watch") == "true" {
			verb = "watch"
		}
	case r.Method == "GET" && len(query) == 0:
	default:
		a.t.Errorf("unexpected request: %s %s", r.Method, r.URL)
	}
	var body []byte
	if verb == "create" {
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var peek stored
		_ = json.Unmarshal(body, &peek)
		name = peek.Metadata.Name
	}
	a.mu.Lock()
	line := map[string]string{"create": "POST ", "list": "LIST ", "get": "GET ", "watch": "WATCH "}[verb] + name
	a.requests = append(a.requests, line)
	before, forbidden := a.before, a.forbidden[verb]
	a.mu.Unlock()
	if before != nil && before(verb, w, r) {
		return
	}
	if forbidden {
		fail(w, 403, "Forbidden", fmt.Sprintf("certificatesigningrequests.certificates.k8s.io is forbidden: User %q cannot %s resource \"certificatesigningrequests\" in API group \"certificates.k8s.io\" at the cluster scope", a.user, verb), "")
		return
	}
	switch verb {
	case "create":
		a.create(w, r, body)
	case "watch":
		a.watch(w, r, name)
	case "list":
		a.mu.Lock()
		defer a.mu.Unlock()
		items := []*stored{}
		if o := a.objects[name]; o != nil {
			items = append(items, o)
		}
		answer(w, 200, map[string]any{"kind": "CertificateSigningRequestList", "apiVersion": "certificates.k8s.io/v1",
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items})
	case "get":
		a.mu.Lock()
		defer a.mu.Unlock()
		if o := a.objects[name]; o != nil {
			answer(w, 200, o)
			return
		}
		fail(w, 404, "NotFound", fmt.Sprintf("certificatesigningrequests.certificates.k8s.io %q not found", name), name)
	}
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, code int, reason, message, name string) {
	answer(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "details": map[string]any{"name": name}, "code": code})
}

// create checks what the real API checks, and a little more.
func (a *api) create(w http.ResponseWriter, r *http.Request, body []byte) {
	var o stored
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil || d.More() || r.Header.Get("Content-Type") != "application/json" {
		a.t.Errorf("create: %v, %q: %s", err, r.Header.Get("Content-Type"), body)
	}
	if o.APIVersion != "certificates.k8s.io/v1" || o.Kind != "CertificateSigningRequest" || o.Metadata.Name == "" ||
		o.Metadata.UID != "" || o.Status.Certificate != nil || bytes.Contains(body, []byte(`"status"`)) {
		a.t.Errorf("create: %s", body)
	}
	invalid := func(field, problem string) {
		fail(w, 422, "Invalid", fmt.Sprintf("CertificateSigningRequest.certificates.k8s.io %q is invalid: spec.%s: Invalid value: %s", o.Metadata.Name, field, problem), o.Metadata.Name)
	}
	csr, err := o.parse()
	if err != nil {
		a.t.Errorf("create: %v", err)
		invalid("request", err.Error())
		return
	}
	want := []string{"digital signature", "client auth"}
	if csr.PublicKeyAlgorithm == x509.RSA {
		want = []string{"digital signature", "key encipherment", "client auth"}
	}
	if !slices.Equal(o.Spec.Usages, want) {
		a.t.Errorf("usages of a request for %v: %q", csr.PublicKeyAlgorithm, o.Spec.Usages)
	}
	if s := o.Spec.ExpirationSeconds; s != nil {
		if n, err := strconv.ParseInt(s.String(), 10, 32); err != nil {
			a.t.Errorf("expirationSeconds: %v", err)
		} else if n < 600 {
			invalid("expirationSeconds", s.String()+": may not specify a duration less than 600 seconds (10 minutes)")
			return
		}
	}
	if !strings.Contains(o.Spec.SignerName, "/") {
		invalid("signerName", `"x": must be a fully qualified domain and path of the form "example.com/signer-name"`)
		return
	}
	if o.Spec.SignerName == SignerClient && slices.Contains(csr.Subject.Organization, "system:masters") {
		fail(w, 403, "Forbidden", `certificatesigningrequests.certificates.k8s.io "x" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed`, "x")
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.objects[o.Metadata.Name] != nil {
		fail(w, 409, "AlreadyExists", fmt.Sprintf("certificatesigningrequests.certificates.k8s.io %q already exists", o.Metadata.Name), o.Metadata.Name)
		return
	}
	o.Metadata.UID = rand.Text()
	created := time.Now().UTC().Format(time.RFC3339)
	o.Metadata.CreationTimestamp = &created
	o.Metadata.ManagedFields = []map[string]any{{"manager": "execproxy", "fieldsV1": map[string]any{"f:spec": map[string]any{}}}}
	o.Spec.Username = a.user
	a.objects[o.Metadata.Name] = &o
	a.changed("ADDED", &o)
	answer(w, 201, &o)
	if a.approves {
		a.approveLocked(o.Metadata.Name)
	}
}

func (o *stored) parse() (*x509.CertificateRequest, error) {
	var text []byte
	if err := json.Unmarshal([]byte(strconv.Quote(o.Spec.Request)), &text); err != nil {
		return nil, err
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(block.Headers) > 0 || len(rest) > 0 {
		return nil, fmt.Errorf("PEM block type must be CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	return csr, csr.CheckSignature()
}

// changed writes history. a.mu is held.
func (a *api) changed(kind string, o *stored) {
	a.version++
	o.Metadata.ResourceVersion = strconv.Itoa(a.version)
	event, err := json.Marshal(map[string]any{"type": kind, "object": o})
	if err != nil {
		a.t.Error(err)
	}
	a.history = append(a.history, change{a.version, o.Metadata.Name, event})
	close(a.news)
	a.news = make(chan struct{})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, name string) {
	query := r.URL.Query()
	version, err := strconv.Atoi(query.Get("resourceVersion"))
	life, err2 := strconv.Atoi(query.Get("timeoutSeconds"))
	if err != nil || err2 != nil || life < 1 || len(query) != 4 {
		a.t.Errorf("watch: %s", r.URL)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	_ = http.NewResponseController(w).Flush()
	end := time.NewTimer(time.Duration(life) * time.Second)
	defer end.Stop()
	for {
		a.mu.Lock()
		var out []byte
		if version < a.oldest {
			out, _ = json.Marshal(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure",
				"message": "too old resource version", "reason": "Expired", "code": 410}})
		} else {
			for _, c := range a.history {
				if c.version > version && c.name == name {
					out = append(append(out, c.event...), '\n')
				}
			}
		}
		gone, news := version < a.oldest, a.news
		version = a.version
		a.mu.Unlock()
		_, _ = w.Write(out)
		_ = http.NewResponseController(w).Flush()
		if gone {
			return
		}
		select {
		case <-news:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// names are those of the requests there are, sorted.
func (a *api) names() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (a *api) object(name string) stored {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *a.must(name)
}

// count counts requests that begin with s.
func (a *api) count(s string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests {
		if strings.HasPrefix(r, s) {
			n++
		}
	}
	return n
}

func (a *api) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

var jane = pkix.Name{CommonName: "jane", Organization: []string{"dev", "ops"}}

func newOrder(t *testing.T, key crypto.Signer) Order {
	t.Helper()
	csr, err := NewRequest(key, jane)
	must(t, err)
	return Order{CSR: csr}
}
