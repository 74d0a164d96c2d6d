//go:build linux

package imagecredentials

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
)

// The node's AWS credentials, and the role that service accounts may assume.
const (
	nodeKey    = "AKIDNODE"
	nodeSecret = "node-secret-of-the-test"
	roleARN    = "arn:aws:iam::123456789012:role/puller"
	otherRole  = "arn:aws:iam::123456789012:role/of-somebody-else"
	audience   = "sts.amazonaws.com"
	issuer     = "https://issuer.test.example"
)

// A call is one that the cloud got, and that was in order.
type call struct {
	Host    string // whom it was meant for
	Service string // of the signature; sts has none
	Region  string
	Who     string // access key, or the service account
}

func (c call) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", c.Service, c.Region, c.Host, c.Who))
}

// cloud is ECR, ECR Public and STS, all regions and partitions of them. Clients get
// there through an HTTPS proxy that answers itself, with certificates of an authority
// they are told to trust: so they call the endpoints that they would call. It verifies
// signatures, scopes and web identity tokens, and refuses what is not in order.
type cloud struct {
	t     *testing.T
	ca    *authority
	url   string // of the proxy
	roots string // file
	saKey *ecdsa.PrivateKey

	ln    net.Listener
	conns chan net.Conn

	mu     sync.Mutex
	calls  []call
	wrong  []string // what was not in order
	issued int
	down   int // status to answer instead
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{t: t, conns: make(chan net.Conn)}
	var err error
	c.ca, err = newAuthority()
	must(t, err)
	c.saKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c.roots = filepath.Join(t.TempDir(), "roots.pem")
	must(t, os.WriteFile(c.roots, c.ca.pem, 0o644))
	c.ln, err = net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c.url = "http://" + c.ln.Addr().String()
	inner := &http.Server{Handler: http.HandlerFunc(c.serve), ReadHeaderTimeout: 10 * time.Second}
	proxy := &http.Server{Handler: http.HandlerFunc(c.connect), ReadHeaderTimeout: 10 * time.Second}
	handed := &handedListener{c.ln.Addr(), c.conns, make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() { _ = inner.Serve(handed) })
	all.Go(func() { _ = proxy.Serve(c.ln) })
	t.Cleanup(func() {
		_ = proxy.Close()
		_ = inner.Close()
		all.Wait()
	})
	return c
}

// connect takes the tunnel for the connection to its host.
func (c *cloud) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		c.complain("%s %s in the clear", r.Method, r.URL)
		http.Error(w, "only CONNECT", http.StatusBadRequest)
		return
	}
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		conn.Close()
		return
	}
	host, _, _ := net.SplitHostPort(r.Host)
	conn = &buffered{conn, rw.Reader}
	c.conns <- tls.Server(conn, &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName != host {
			return nil, errors.New("another name than the tunnel's")
		}
		return c.ca.issue(host)
	}})
}

type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

type handedListener struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
}

func (l *handedListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *handedListener) Addr() net.Addr { return l.addr }
func (l *handedListener) Close() error   { close(l.done); return nil }

func (c *cloud) complain(format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, a...))
}

func (c *cloud) record(k call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, k)
}

// take returns the calls since the last time, and what was wrong.
func (c *cloud) take() (calls []call, wrong []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, wrong, c.calls, c.wrong = c.calls, c.wrong, nil, nil
	return calls, wrong
}

// fail has every call answered with a status; 0 ends that.
func (c *cloud) fail(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = status
}

// endpoint matches the names of AWS's APIs, and finds their region.
var endpoint = regexp.MustCompile(`^(api\.ecr|ecr|ecr-fips|api\.ecr-fips|api\.ecr-public|ecr-public|sts|sts-fips)\.([a-z0-9-]+)\.(amazonaws\.com|amazonaws\.com\.cn|amazonaws\.eu|api\.aws|api\.amazonwebservices\.com\.cn|c2s\.ic\.gov|sc2s\.sgov\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)$`)

func (c *cloud) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	m := endpoint.FindStringSubmatch(r.Host)
	if m == nil || r.Host != r.TLS.ServerName {
		c.complain("a call to %q", r.Host)
		http.Error(w, "no such service", http.StatusNotFound)
		return
	}
	c.mu.Lock()
	down := c.down
	c.mu.Unlock()
	if down != 0 {
		c.record(call{Host: r.Host, Who: fmt.Sprint(down)})
		awsError(w, down, "AccessDeniedException", "the test says no")
		return
	}
	if strings.HasPrefix(m[1], "sts") {
		c.sts(w, r, body)
		return
	}
	service := "ecr"
	if strings.HasSuffix(m[1], "-public") {
		service = "ecr-public"
	}
	who, err := c.verify(r, body, service, m[2])
	if err != nil {
		c.complain("%s: %v", r.Host, err)
		awsError(w, http.StatusForbidden, "InvalidSignatureException", "signature")
		return
	}
	target := r.Header.Get("X-Amz-Target")
	if want := map[string]string{"ecr": "AmazonEC2ContainerRegistry_V20150921.", "ecr-public": "SpencerFrontendService."}[service] + "GetAuthorizationToken"; target != want {
		c.complain("%s: target %q, want %q", r.Host, target, want)
		awsError(w, http.StatusBadRequest, "UnknownOperationException", target)
		return
	}
	c.record(call{r.Host, service, m[2], who})
	c.mu.Lock()
	c.issued++
	password := fmt.Sprintf("token-%d-for-%s-in-%s", c.issued, who, m[2])
	c.mu.Unlock()
	data := map[string]any{
		"authorizationToken": base64.StdEncoding.EncodeToString([]byte("AWS:" + password)),
		"expiresAt":          float64(time.Now().Add(12 * time.Hour).Unix()),
		"proxyEndpoint":      "https://123456789012.dkr.ecr." + m[2] + ".amazonaws.com",
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	var all any = []any{data}
	if service == "ecr-public" {
		all = data
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"authorizationData": all})
}

func awsError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.Header().Set("X-Amzn-ErrorType", code)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "message": message})
}

// verify checks the signature, for the service and the region of the endpoint.
func (c *cloud) verify(r *http.Request, body []byte, service, region string) (string, error) {
	sum := sha256.Sum256(body)
	req, err := signer.FromReceived(r, hex.EncodeToString(sum[:]))
	if err != nil {
		return "", err
	}
	v := &sigv4.Verifier{
		Region: region, Service: service,
		Lookup: func(key, date, region, service string) ([]byte, sigv4.Identity, error) {
			secret := map[string]string{nodeKey: nodeSecret, "ASIAROLE": roleSecret}[key]
			if secret == "" {
				return nil, sigv4.Identity{}, sigv4.ErrUnknownKey
			}
			return sigv4.DeriveKey(secret, date, region, service), sigv4.Identity{AccessKeyID: key}, nil
		},
		CheckSessionToken: func(id sigv4.Identity, token string) error {
			if want := map[string]string{"ASIAROLE": roleSession}[id.AccessKeyID]; token != want {
				return errors.New("another session token")
			}
			return nil
		},
	}
	id, err := v.Verify(req)
	return id.AccessKeyID, err
}

const (
	roleSecret  = "role-secret-of-the-test"
	roleSession = "role-session-of-the-test"
)

// sts answers AssumeRoleWithWebIdentity as the role's trust policy would have it: a
// token that the cluster's issuer signed for STS, of a service account team:*.
func (c *cloud) sts(w http.ResponseWriter, r *http.Request, body []byte) {
	form, err := url.ParseQuery(string(body))
	if err != nil || form.Get("Action") != "AssumeRoleWithWebIdentity" || r.Header.Get("Authorization") != "" {
		c.complain("sts: %.60q, signed: %t", body, r.Header.Get("Authorization") != "")
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	subject, err := checkToken(&c.saKey.PublicKey, form.Get("WebIdentityToken"))
	c.record(call{Host: r.Host, Service: "sts", Who: subject})
	if err == nil && (form.Get("RoleArn") != roleARN || !strings.HasPrefix(subject, "system:serviceaccount:team:")) {
		err = errors.New("not authorized to perform sts:AssumeRoleWithWebIdentity")
	}
	w.Header().Set("Content-Type", "text/xml")
	if err != nil {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>%s</Message></Error><RequestId>1</RequestId></ErrorResponse>`, err)
		return
	}
	fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>`+
		`<Credentials><AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials>`+
		`</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, roleSecret, roleSession, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

type claims struct {
	Issuer   string   `json:"iss"`
	Audience []string `json:"aud"`
	Subject  string   `json:"sub"`
	Expires  int64    `json:"exp"`
	ID       string   `json:"jti"`
}

var b64 = base64.RawURLEncoding

// makeToken is a service account's token (JWT, ES256), as an API server makes it.
func makeToken(key *ecdsa.PrivateKey, c claims) (string, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	signed := b64.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + b64.EncodeToString(payload)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", err
	}
	sig := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + b64.EncodeToString(sig), nil
}

func checkToken(key *ecdsa.PublicKey, token string) (subject string, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("InvalidIdentityToken")
	}
	payload, err := b64.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	sig, err := b64.DecodeString(parts[2])
	if err != nil || len(sig) != 64 {
		return "", errors.New("InvalidIdentityToken")
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if !ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])) {
		return "", errors.New("InvalidIdentityToken: signature")
	}
	var c claims
	if err := json.Unmarshal(payload, &c); err != nil {
		return "", err
	}
	if c.Issuer != issuer || !slices.Contains(c.Audience, audience) || time.Now().Unix() >= c.Expires {
		return c.Subject, errors.New("InvalidIdentityToken: issuer, audience or expiry")
	}
	return c.Subject, nil
}

// authority issues the endpoints' certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte

	mu     sync.Mutex
	issued map[string]*tls.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cloud"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, issued: map[string]*tls.Certificate{}, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

func (a *authority) issue(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.issued[host]; ok {
		return c, nil
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(a.issued)) + 2), Subject: pkix.Name{CommonName: "endpoint"}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		t.DNSNames, t.IPAddresses = nil, []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
	a.issued[host] = c
	return c, nil
}
