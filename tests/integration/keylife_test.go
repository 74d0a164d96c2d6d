//go:build linux

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/execproxy/execproxy/tests/integration/internal/cluster"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// A keyHome is a place for a key, and what execproxy has to be told of it.
type keyHome struct {
	name  string
	kind  string                                    // as `key show` says it
	algo  string                                    // as `key create` takes it
	renew string                                    // --renew
	place func(h *home) (key string, args []string) // --key, and the flags that go with it
}

func onSoftHSM(h *home) (string, []string) {
	hsm, _ := h.softHSM("execproxy", "pin-2718")
	pin := h.file("pin", "pin-2718\n")
	return "pkcs11:token=execproxy;object=me", []string{"--pkcs11-module", hsm.Module, "--pin-source", pin}
}

func inTPMFile(h *home) (string, []string) {
	return "tpm:" + h.path("tpm.pem"), []string{"--tpm-device", h.swtpm().Socket}
}

func atTPMHandle(h *home) (string, []string) {
	return "tpm:handle=0x81000100", []string{"--tpm-device", h.swtpm().Socket, "--cert", h.path("tpm.crt")}
}

func inFile(h *home) (string, []string) { return h.path("key.pem"), nil }

var keyHomes = []keyHome{
	{"softhsm-ec", "ECDSA P-256", "ec-p256", "new-key", onSoftHSM},
	{"softhsm-rsa", "RSA 2048", "rsa-2048", "same-key", onSoftHSM},
	{"swtpm-ec", "ECDSA P-256", "ec-p256", "new-key", inTPMFile},
	{"swtpm-rsa", "RSA 2048", "rsa-2048", "same-key", atTPMHandle},
	{"file", "ECDSA P-384", "ec-p384", "new-key", inFile},
}

// shownKey is what `execproxy key show -o json` tells.
type shownKey struct {
	Home, Location, Kind, Fingerprint string
	SignatureSchemes                  []string
	Certificate                       *struct {
		Location, Subject, Serial string
		NotAfter                  time.Time
	}
	Warnings []string
}

func (h *home) showKey(args ...string) (k shownKey) {
	h.t.Helper()
	out := h.execproxy(append([]string{"key", "show", "-o", "json"}, args...)...).ok(h.t)
	must(h.t, json.Unmarshal([]byte(out), &k))
	return k
}

// enrolled makes a key and has the cluster issue its certificate for user. It returns the flags that name the key, and a
// kubeconfig of somebody else who may ask for certificates.
func (k keyHome) enrolled(t *testing.T, h *home, user string, groups ...string) (flags []string, plain string) {
	t.Helper()
	key, args := k.place(h)
	flags = append([]string{"--key", key}, args...)
	out := h.execproxy(append([]string{"key", "create", "--algorithm", k.algo}, flags...)...).ok(t)
	if !strings.Contains(out, k.kind+" key created") {
		t.Errorf("key create: %s", out)
	}
	if s := h.showKey(flags...); s.Kind != k.kind || s.Certificate != nil || len(s.SignatureSchemes) == 0 || len(s.Warnings) > 0 {
		t.Errorf("key show before enrolling: %+v", s)
	}
	helper := strings.ReplaceAll(user, ":", "-") + "-helper"
	cert, helperKey := h.user(helper, "enrollers")
	plain = h.kubeconfig("plain", suite.cluster.API.URL, cert, helperKey)
	ask := append([]string{h.bin, "key", "enroll", "--kubeconfig", plain, "--user", user}, flags...)
	for _, g := range groups {
		ask = append(ask, "--group", g)
	}
	enroll := h.start(ask...)
	name := pending(t, helper).Name
	enroll.stderr.await(t, "kubectl certificate approve "+name)
	approve(t, name)
	if code := enroll.wait(); code != 0 {
		t.Fatalf("key enroll: exit code %d: %s", code, enroll.stderr)
	}
	s := h.showKey(flags...)
	if s.Certificate == nil || !strings.HasPrefix(s.Certificate.Subject, "CN="+user+",O=") {
		t.Fatalf("key show after enrolling: %+v", s)
	}
	if left := time.Until(s.Certificate.NotAfter); left > cluster.CertificateLife || left < cluster.CertificateLife-2*patience {
		t.Errorf("the certificate lasts another %v, want %v", left, cluster.CertificateLife)
	}
	return flags, plain
}

// credential is which certificate the API server saw.
func credential(t *testing.T, h *home, kubeconfig string) (user, id string) {
	t.Helper()
	out := h.kubectl(kubeconfig, "auth", "whoami", "-o", "json").ok(t)
	var review struct {
		Status struct {
			UserInfo struct {
				Username string
				Extra    map[string][]string
			}
		}
	}
	must(t, json.Unmarshal([]byte(out), &review))
	return review.Status.UserInfo.Username, strings.Join(review.Status.UserInfo.Extra["authentication.kubernetes.io/credential-id"], " ")
}

// soon waits for a user's request as long as a certificate may take to grow old.
func soon(t *testing.T, user string) (found *certificates.CertificateSigningRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	if err := requests(ctx, func(csr *certificates.CertificateSigningRequest) bool {
		found = csr
		return csr.Spec.Username == user && undecided(csr)
	}); err != nil {
		t.Fatalf("no certificate signing request of %s: %v", user, err)
	}
	return found
}

// TestKeyLife: a key is made where it stays, the cluster issues its certificate,
// kubectl works with it through a proxy, and that renews the certificate under an
// open watch, after an administrator was told that they have to approve it.
func TestKeyLife(t *testing.T) {
	t.Parallel()
	for _, k := range keyHomes {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			certificateController(t)
			h, ns, user := newHome(t), namespace(t), "life-"+k.name
			flags, plain := k.enrolled(t, h, user, "dev", "enrollers")
			kc := h.proxied(append([]string{"--kubeconfig", plain, "--auth", "mtls", "--renew", k.renew}, flags...)...)
			made := h.showKey(flags...)
			first, before := credential(t, h, kc)
			if first != user {
				t.Fatalf("auth whoami: %q, want %s", first, user)
			}
			watch := h.start(suite.kubectl, "--kubeconfig="+kc, "-n", ns, "get", "configmaps", "--watch", "-o", "name")
			h.kubectl(kc, "-n", ns, "apply", "-f", h.file("a.yaml", fmt.Sprintf(manifest, "a", "1"))).ok(t)
			watch.stdout.await(t, "configmap/a\n")
			old := h.proxy()
			if old.Key.Kind != k.kind || old.Key.Signatures != 1 || old.Renewal.Next.IsZero() {
				t.Errorf("status: %+v; want one signature by a key of kind %s, and when it is renewed", old, k.kind)
			}

			// Two thirds of the certificate's life come within a minute.
			csr := soon(t, user)
			if csr.Spec.SignerName != "kubernetes.io/kube-apiserver-client" || strings.Join(csr.Spec.Groups, " ") == "" {
				t.Errorf("the renewal's request: %+v", csr.Spec)
			}
			eventually(t, patience, func() error {
				if p := h.proxy(); p.Renewal.Request != csr.Name || p.Renewal.Approve != "kubectl certificate approve "+csr.Name {
					return fmt.Errorf("status: %+v, want the request %s and how to approve it", p.Renewal, csr.Name)
				}
				return nil
			})
			if r := h.execproxy("status"); !strings.Contains(r.stderr, "an administrator runs: kubectl certificate approve "+csr.Name) {
				t.Errorf("status does not say what to do: %s", r)
			}
			approve(t, csr.Name)
			eventually(t, patience, func() error {
				if p := h.proxy(); p.Renewal.Renewed != 1 || !p.NotAfter.After(old.NotAfter) {
					return fmt.Errorf("status: %+v; want one renewal, and a certificate that lasts longer than %v", p, old.NotAfter)
				}
				return nil
			})

			// The watch that was open goes on; what is new goes out with the new certificate.
			h.kubectl(kc, "-n", ns, "apply", "-f", h.file("b.yaml", fmt.Sprintf(manifest, "b", "1"))).ok(t)
			watch.stdout.await(t, "configmap/b\n")
			second, after := credential(t, h, kc)
			if second != user || after == before {
				t.Errorf("auth whoami: %q with %s, before with %s; want %s with another certificate", second, after, before, user)
			}
			now := h.proxy()
			if now.PID != old.PID || now.Handshakes.Full != 2 || now.Key.Failures != 0 {
				t.Errorf("status: %+v; want the same proxy and one handshake for each certificate", now)
			}
			watch.signal(syscall.SIGINT)
			watch.wait()
			if errs := watch.stderr.String(); strings.Contains(errs, "watch") {
				t.Errorf("the watch was cut: %s", errs)
			}
			// A proxy that starts now finds the new certificate where it is kept.
			h.execproxy("stop", "--all").ok(t)
			s := h.showKey(flags...)
			if s.Certificate == nil || !s.Certificate.NotAfter.Equal(now.NotAfter) || s.Kind != k.kind {
				t.Errorf("key show: %+v; want the certificate that ends at %v", s, now.NotAfter)
			}
			if same := s.Fingerprint == made.Fingerprint; same != (k.renew == "same-key") {
				t.Errorf("--renew %s: key %s, before %s", k.renew, s.Fingerprint, made.Fingerprint)
			}
			if again, _ := credential(t, h, kc); again != user {
				t.Errorf("auth whoami through the next proxy: %q", again)
			}
			csrs, err := suite.admin.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
			must(t, err)
			n := 0
			for _, c := range csrs.Items {
				if c.Spec.Username == user {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%d requests for one renewal", n)
			}
		})
	}
}

// TestNodeKey: a node's certificate is renewed by itself, the cluster approves it.
func TestNodeKey(t *testing.T) {
	t.Parallel()
	certificateController(t)
	h := newHome(t)
	const user = "system:node:keys.test"
	k := keyHome{"swtpm", "ECDSA P-256", "ec-p256", "same-key", inTPMFile}
	flags, plain := k.enrolled(t, h, user, "system:nodes")
	kc := h.proxied(append([]string{"--kubeconfig", plain, "--auth", "mtls"}, flags...)...)
	_, before := credential(t, h, kc)
	eventually(t, 3*patience, func() error {
		if p := h.proxy(); p.Renewal.Renewed != 1 {
			return fmt.Errorf("status: %+v, want one renewal", p.Renewal)
		}
		return nil
	})
	if got, after := credential(t, h, kc); got != user || after == before {
		t.Errorf("auth whoami: %q with %s, before with %s", got, after, before)
	}
}

// TestRenewByHand: `key renew` with a new key on a token; the proxy that runs takes
// it over, and the old key is gone from the token.
func TestRenewByHand(t *testing.T) {
	t.Parallel()
	certificateController(t)
	h := newHome(t)
	const user = "by-hand"
	var tok *token.Token
	k := keyHome{"softhsm", "ECDSA P-256", "ec-p256", "off", func(h *home) (string, []string) {
		hsm, made := h.softHSM("execproxy", "pin-2718")
		tok = made
		return "pkcs11:token=execproxy;object=me", []string{"--pkcs11-module", hsm.Module, "--pin-source", h.file("pin", "pin-2718\n")}
	}}
	flags, plain := k.enrolled(t, h, user, "dev", "enrollers")
	kc := h.proxied(append([]string{"--kubeconfig", plain, "--auth", "mtls", "--renew", k.renew}, flags...)...)
	_, before := credential(t, h, kc)
	old, made := h.proxy(), h.showKey(flags...)

	approveAll(t, user)
	out := h.execproxy("key", "renew", "--kubeconfig", kc, "--renew", "new-key").ok(t)
	if !strings.Contains(out, "certificate of CN="+user) {
		t.Errorf("key renew: %s", out)
	}
	if got, after := credential(t, h, kc); got != user || after == before {
		t.Errorf("auth whoami: %q with %s, before with %s", got, after, before)
	}
	if now := h.proxy(); now.PID != old.PID || now.Key.Failures != 0 {
		t.Errorf("status: %+v, want the same proxy", now)
	}
	if now := h.showKey(flags...); now.Fingerprint == made.Fingerprint {
		t.Errorf("key show: %+v, want another key", now)
	}
	list, err := tok.Tool(t.Context(), "--list-objects", "--type", "privkey")
	must(t, err)
	if n := strings.Count(string(list), "Private Key Object"); n != 1 {
		t.Errorf("%d private keys on the token, want 1:\n%s", n, list)
	}
}

// TestNowhereToStore: whoever cannot store the certificate hears of it before an
// administrator is asked.
func TestNowhereToStore(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.execproxy("key", "create", "--key", h.path("me.key")).ok(t)
	other := h.path("other.key")
	h.execproxy("key", "create", "--key", other).ok(t)
	cert, key := h.user("nowhere", "enrollers")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
	for name, at := range map[string]string{"no directory": h.path("none/me.crt"), "a text": h.file("notes.txt", "my notes\n"), "another key": other} {
		r := h.execproxy("key", "enroll", "--kubeconfig", plain, "--user", "jane", "--key", h.path("me.key"), "--cert", at, "--timeout", "5s")
		if r.code != 1 || !strings.Contains(r.stderr, at) && !strings.Contains(r.stderr, "none") || strings.Contains(r.stderr, "approve") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %s", name, r)
		}
	}
}
