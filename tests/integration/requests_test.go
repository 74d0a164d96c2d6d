//go:build linux

package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// signing starts the controllers that approve and sign certificates, once.
var signing = sync.OnceValues(func() (*proc.Process, error) {
	return suite.cluster.StartCertificates(context.Background())
})

// certificateController makes sure that approved requests are signed, for
// cluster.CertificateLife.
func certificateController(t *testing.T) *proc.Process {
	t.Helper()
	p, err := signing()
	must(t, err)
	return p
}

// approve does what `kubectl certificate approve NAME` does.
func approve(t *testing.T, name string) {
	t.Helper()
	must(t, decide(t.Context(), name, certificates.CertificateSigningRequestCondition{
		Type: certificates.CertificateApproved, Reason: "TestApprove", Message: "approved by a test",
	}))
}

// deny does what `kubectl certificate deny NAME` does, with a reason.
func deny(t *testing.T, name, reason, message string) {
	t.Helper()
	must(t, decide(t.Context(), name, certificates.CertificateSigningRequestCondition{
		Type: certificates.CertificateDenied, Reason: reason, Message: message,
	}))
}

func decide(ctx context.Context, name string, condition certificates.CertificateSigningRequestCondition) error {
	condition.Status = core.ConditionTrue
	requests := suite.admin.CertificatesV1().CertificateSigningRequests()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		csr, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		csr.Status.Conditions = append(csr.Status.Conditions, condition)
		_, err = requests.UpdateApproval(ctx, name, csr, metav1.UpdateOptions{})
		return err
	})
}

// undecided tells whether a request waits for an administrator.
func undecided(csr *certificates.CertificateSigningRequest) bool {
	return len(csr.Status.Conditions) == 0
}

// requests shows all certificate signing requests, and each of their changes, to
// see, until that returns true.
func requests(ctx context.Context, see func(*certificates.CertificateSigningRequest) bool) error {
	all := suite.admin.CertificatesV1().CertificateSigningRequests()
	list, err := all.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if see(&list.Items[i]) {
			return nil
		}
	}
	watch, err := all.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if csr, ok := event.Object.(*certificates.CertificateSigningRequest); ok && see(csr) {
			return nil
		}
	}
	return errors.Join(errors.New("the watch of certificate signing requests ended"), ctx.Err())
}

// pending waits for a request of a user that nobody has decided, but skip.
func pending(t *testing.T, user string, skip ...string) (found *certificates.CertificateSigningRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	known := map[string]bool{}
	for _, name := range skip {
		known[name] = true
	}
	if err := requests(ctx, func(csr *certificates.CertificateSigningRequest) bool {
		if csr.Spec.Username != user || known[csr.Name] || !undecided(csr) {
			return false
		}
		found = csr
		return true
	}); err != nil {
		t.Fatalf("no certificate signing request of %s: %v", user, err)
	}
	return found
}

// issued waits for the certificate of a request and returns it, PEM.
func issued(t *testing.T, name string) (certificate []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last any
	if err := requests(ctx, func(csr *certificates.CertificateSigningRequest) bool {
		if csr.Name == name {
			last, certificate = csr.Status.Conditions, csr.Status.Certificate
		}
		return len(certificate) > 0
	}); err != nil {
		t.Fatalf("no certificate for request %s (%+v): %v", name, last, err)
	}
	return certificate
}

// approveAll approves whatever a user asks for, until the test ends, and tells
// how often so far.
func approveAll(t *testing.T, user string) (count func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	done := map[string]bool{}
	var wg sync.WaitGroup
	wg.Go(func() {
		see := func(csr *certificates.CertificateSigningRequest) bool {
			if csr.Spec.Username != user || !undecided(csr) {
				return false
			}
			mu.Lock() // until it is counted, count waits
			defer mu.Unlock()
			if err := decide(ctx, csr.Name, certificates.CertificateSigningRequestCondition{
				Type: certificates.CertificateApproved, Reason: "TestApprove", Message: "approved by a test",
			}); err != nil && ctx.Err() == nil {
				t.Errorf("approving %s: %v", csr.Name, err)
			}
			done[csr.Name] = true
			return false
		}
		for ctx.Err() == nil { // the server ends watches after a while
			if err := requests(ctx, see); err != nil && ctx.Err() == nil {
				t.Logf("approving requests of %s: %v", user, err)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(done)
	}
}

// submit asks for a client certificate; csr is PEM.
func submit(ctx context.Context, c *kubernetes.Clientset, csr []byte) (name string, err error) {
	seconds := int32(10 * time.Minute / time.Second) // the API takes none for less
	created, err := c.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: csr, SignerName: certificates.KubeAPIServerClientSignerName, ExpirationSeconds: &seconds,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return created.Name, nil
}
