package sigv4

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
)

// cases is how many there are: a folder that lost some must not look like success.
const cases = 38

type vector struct {
	dir         string
	Credentials struct {
		AccessKeyID     string `json:"access_key_id"`
		SecretAccessKey string `json:"secret_access_key"`
		Token           string `json:"token"`
	} `json:"credentials"`
	Region           string    `json:"region"`
	Service          string    `json:"service"`
	Timestamp        time.Time `json:"timestamp"`
	Normalize        bool      `json:"normalize"`
	SignBody         bool      `json:"sign_body"`
	OmitSessionToken bool      `json:"omit_session_token"`
}

// vectors returns the public test suite, which is not part of this project.
func vectors(t *testing.T) []vector {
	t.Helper()
	root := os.Getenv("EXECPROXY_VECTORS")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "vectors")
	}
	root = filepath.Join(root, "aws-sigv4")
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no SigV4 test suite at %s: set EXECPROXY_VECTORS to the folder that holds aws-sigv4", root)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		v := vector{dir: filepath.Join(root, e.Name())}
		if err := json.Unmarshal([]byte(v.file(t, "context.json")), &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	if len(all) != cases {
		t.Fatalf("%s has %d cases, want %d", root, len(all), cases)
	}
	return all
}

func (v *vector) file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(v.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (v *vector) mode() PathMode {
	if v.Normalize {
		return PathNormalized
	}
	return PathExact
}

// request reads one of the suite's requests. The suite writes a target before any
// encoding: what would not survive in a request line is encoded here, once. It folds one
// header value over lines, which RFC 9112 (section 5.2) reads as spaces.
func (v *vector) request(t *testing.T, name string) *signer.Request {
	t.Helper()
	head, body, _ := strings.Cut(strings.ReplaceAll(v.file(t, name), "\r\n", "\n"), "\n\n")
	lines := bufio.NewScanner(strings.NewReader(head))
	lines.Scan()
	method, rest, _ := strings.Cut(lines.Text(), " ")
	target := escape(strings.TrimSuffix(rest, " HTTP/1.1"))
	path, query, _ := strings.Cut(target, "?")
	sum := sha256.Sum256([]byte(body))
	r := &signer.Request{Method: method, Scheme: "https", Path: path, RawQuery: query, Header: http.Header{}}
	r.ContentSHA256 = hex.EncodeToString(sum[:])
	last := ""
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, " ") {
			values := r.Header[last]
			values[len(values)-1] += line
		} else if name, value, ok := strings.Cut(line, ":"); !ok {
			t.Fatalf("%s: line %q", v.dir, line)
		} else if strings.EqualFold(name, "host") {
			r.Authority = value
		} else {
			last = http.CanonicalHeaderKey(name)
			r.Header[last] = append(r.Header[last], value)
		}
	}
	return r
}

func escape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", s[i])
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func (v *vector) signer(t *testing.T) *Signer {
	t.Helper()
	s, err := New(Options{
		Region: v.Region, Service: v.Service,
		Credentials:          credentials.NewStaticCredentialsProvider(v.Credentials.AccessKeyID, v.Credentials.SecretAccessKey, v.Credentials.Token),
		Path:                 v.mode(),
		SingleEncode:         true, // the suite encodes paths once
		OmitContentSHA256:    !v.SignBody,
		UnsignedSessionToken: v.OmitSessionToken,
		Clock:                func() time.Time { return v.Timestamp },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (v *vector) verifier() *Verifier {
	return &Verifier{
		Region: v.Region, Service: v.Service,
		Lookup: func(accessKeyID, date, region, service string) ([]byte, Identity, error) {
			if accessKeyID != v.Credentials.AccessKeyID {
				return nil, Identity{}, ErrUnknownKey
			}
			return DeriveKey(v.Credentials.SecretAccessKey, date, region, service), Identity{User: "suite"}, nil
		},
		Path:                 v.mode(),
		SingleEncode:         true,
		UnsignedSessionToken: v.OmitSessionToken,
		Presigned:            true,
		Clock:                func() time.Time { return v.Timestamp },
	}
}

// TestVectorsSigned: what Sign returns is what the suite's signed request has.
func TestVectorsSigned(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(filepath.Base(v.dir), func(t *testing.T) {
			got, err := v.signer(t).SignRequest(t.Context(), v.request(t, "request.txt"))
			if err != nil {
				t.Fatal(err)
			}
			if fields, err := signFields(t, v.signer(t), v.request(t, "request.txt")); err != nil || !reflect.DeepEqual(fields, got) {
				t.Errorf("SignFields\n got %v, %v\nwant %v", fields, err, got)
			}
			signed := v.request(t, "header-signed-request.txt")
			for _, name := range []string{fieldAuthorization, fieldDate, fieldToken, fieldSHA256} {
				if g, w := got.Get(name), signed.Header.Get(name); g != w {
					t.Errorf("%s\n got %q\nwant %q", name, g, w)
				}
			}
			if want := "Signature=" + strings.TrimSpace(v.file(t, "header-signature.txt")); !strings.HasSuffix(got.Get(fieldAuthorization), want) {
				t.Errorf("got %q, want %s", got.Get(fieldAuthorization), want)
			}
		})
	}
}

// TestVectorsVerified: the verifier accepts the suite's signed requests, in header and
// query, agrees with each intermediate text, and refuses the same with a change.
func TestVectorsVerified(t *testing.T) {
	for _, v := range vectors(t) {
		for _, kind := range []string{"header", "query"} {
			t.Run(filepath.Base(v.dir)+"/"+kind, func(t *testing.T) {
				r := v.request(t, kind+"-signed-request.txt")
				id, err := v.verifier().Verify(r)
				if err != nil || id.User != "suite" || id.AccessKeyID != v.Credentials.AccessKeyID {
					t.Fatalf("Verify = %+v, %v", id, err)
				}
				c, form := v.canonical(t, r)
				if want := v.file(t, kind+"-canonical-request.txt"); form != want {
					t.Errorf("canonical request\n%s\nwant\n%s", form, want)
				}
				sts := stringToSign(c.date, c.scope, form)
				if want := v.file(t, kind+"-string-to-sign.txt"); sts != want {
					t.Errorf("string to sign\n%s\nwant\n%s", sts, want)
				}
				key := DeriveKey(v.Credentials.SecretAccessKey, c.scope.date, c.scope.region, c.scope.service)
				if got, want := hex.EncodeToString(hmacSHA256(key, sts)), strings.TrimSpace(v.file(t, kind+"-signature.txt")); got != want {
					t.Errorf("signature %s, want %s", got, want)
				}
				for name, change := range changes {
					changed := *r
					changed.Header = r.Header.Clone()
					change(&changed)
					if _, err := v.verifier().Verify(&changed); err == nil {
						t.Errorf("with another %s: accepted", name)
					}
				}
			})
		}
	}
}

// canonical takes the verifier's own way to the canonical request.
func (v *vector) canonical(t *testing.T, r *signer.Request) (claim, string) {
	t.Helper()
	fields, err := lowered(r.Header)
	if err != nil {
		t.Fatal(err)
	}
	query := pairs(r.RawQuery)
	c, _, err := v.verifier().claim(fields, &query)
	if err != nil {
		t.Fatal(err)
	}
	form, err := v.verifier().canonical(&c, fields, query, r)
	if err != nil {
		t.Fatal(err)
	}
	return c, form.String()
}

// changes are what an attacker on the way might do.
var changes = map[string]func(r *signer.Request){
	"method":    func(r *signer.Request) { r.Method = "DELETE" },
	"authority": func(r *signer.Request) { r.Authority = "evil.example" },
	"path":      func(r *signer.Request) { r.Path += "x" },
	"query": func(r *signer.Request) {
		if r.RawQuery != "" {
			r.RawQuery += "&"
		}
		r.RawQuery += "dryRun="
	},
	"body": func(r *signer.Request) { r.ContentSHA256 = strings.Repeat("0", 64) },
	"field": func(r *signer.Request) {
		r.Header.Set("Impersonate-User", "admin")
	},
}

// TestSDKMissesNormalized records why the SDK alone is not enough: given the request
// itself, it signs the path as it is.
func TestSDKMissesNormalized(t *testing.T) {
	for _, v := range vectors(t) {
		r := v.request(t, "request.txt")
		got := sdkSignature(t, r, aws.Credentials{
			AccessKeyID: v.Credentials.AccessKeyID, SecretAccessKey: v.Credentials.SecretAccessKey, SessionToken: v.Credentials.Token,
		}, sdkOptions{region: v.Region, service: v.Service, at: v.Timestamp, single: true, omitHash: !v.SignBody, unsignedToken: v.OmitSessionToken})
		agrees := strings.HasSuffix(got, strings.TrimSpace(v.file(t, "header-signature.txt")))
		odd := v.Normalize && normalize(r.Path) != r.Path
		if agrees == odd {
			t.Errorf("%s: SDK agrees: %t, path needs normalising: %t", filepath.Base(v.dir), agrees, odd)
		}
	}
}
