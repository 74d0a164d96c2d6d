package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/enroll"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
	"github.com/execproxy/execproxy/signer/certificate"
)

// interruptible ends a context with Ctrl-C, so that what was begun is cleaned up.
func interruptible(ctx context.Context) (context.Context, func()) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// runKeyEnroll has the cluster issue the key's first certificate.
func runKeyEnroll(ctx context.Context, w *world, o *options) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	k, c, err := o.openKey(ctx, w)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := o.usage(c.CheckCert()); err != nil {
		return err
	}
	subject, err := o.subject(k)
	if err != nil {
		return err
	}
	if err := k.CheckStore(); err != nil { // before an administrator approves
		return err
	}
	client, err := o.clusterClient()
	if err != nil {
		return err
	}
	csr, err := enroll.NewRequest(k, subject)
	if err != nil {
		return err
	}
	chain, err := o.request(ctx, w, client, enroll.Order{CSR: csr, SignerName: c.SignerName, Expiration: o.expiration})
	if err != nil {
		return err
	}
	next, err := k.Store(ctx, chain)
	if err != nil {
		return err
	}
	return o.stored(ctx, w, next)
}

// clusterClient speaks to the API with the credentials of a kubeconfig's context,
// whatever they are.
func (o *options) clusterClient() (*enroll.Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w; name one whose user may create certificatesigningrequests with --kubeconfig or --context", err)
	}
	rt, err := rest.TransportFor(c)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig's credentials: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig's server: %w", err)
	}
	return &enroll.Client{Server: server, Transport: rt}, nil
}

// request submits an order and waits for the certificate, telling what is going on.
func (o *options) request(ctx context.Context, w *world, client *enroll.Client, order enroll.Order) ([]*x509.Certificate, error) {
	if o.timeout < 0 {
		return nil, usagef("--timeout: %v is not a time above zero", o.timeout)
	}
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	s, err := client.Submit(ctx, order)
	if err != nil {
		return nil, err
	}
	p := newProgress(w.stderr)
	defer p.end()
	what := "is submitted"
	if s.Adopted {
		what = fmt.Sprintf("is there since %s, going on with it", s.Created.Local().Format(time.DateTime))
	}
	p.say(fmt.Sprintf("certificate signing request %s %s", s.Name, what))
	text, err := client.Wait(ctx, s, func(now enroll.Progress) { p.say(now.String()) })
	p.end()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("certificate signing request %s: no certificate within %v; it stays: an administrator runs `%s`, then run the same command again", s.Name, o.timeout, enroll.ApproveCommand(s.Name))
	case errors.Is(err, context.Canceled):
		return nil, fmt.Errorf("certificate signing request %s: interrupted; it stays, and the same command goes on with it", s.Name)
	case err != nil:
		return nil, err
	}
	return certificate.Parse("", text)
}

// A progress tells somebody who waits what for, a line for each news, and on a
// terminal that we still live.
type progress struct {
	out   io.Writer
	live  bool // out is a terminal
	begin time.Time

	mu   sync.Mutex // guards out
	stop func()
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, begin: time.Now(), stop: func() {}}
	f, ok := out.(*os.File)
	if p.live = ok && term.IsTerminal(int(f.Fd())); !p.live {
		return p
	}
	quit := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				fmt.Fprint(p.out, "\r\x1b[K")
				return
			case <-tick.C:
				p.mu.Lock()
				fmt.Fprintf(p.out, "\rwaiting for %s\x1b[K", age(time.Since(p.begin)))
				p.mu.Unlock()
			}
		}
	})
	p.stop = sync.OnceFunc(func() { close(quit); ticking.Wait() })
	return p
}

// say prints a line of news.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "execproxy: %s\n", text)
}

func (p *progress) end() { p.stop() }

// stored tells what is where now, and has running proxies look.
func (o *options) stored(ctx context.Context, w *world, k *keyhome.Key) error {
	leaf := k.Leaf()
	fmt.Fprintf(w.stdout, "certificate of %s stored in %s, valid until %s\n", leaf.Subject, k.CertificateLocation(), leaf.NotAfter.UTC().Format(time.RFC3339))
	for _, warning := range k.Warnings() {
		fmt.Fprintf(w.stderr, "warning: %s\n", warning)
	}
	p, err := w.places()
	if err != nil {
		return err
	}
	daemon.Reload(ctx, p, "")
	return nil
}

// runKeyRenew renews a certificate with itself.
func runKeyRenew(ctx context.Context, w *world, o *options) error {
	if err := o.noOperands(); err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	s, err := o.loadSource(w)
	if err != nil {
		return err
	}
	c := s.config
	if c.Auth != config.AuthMTLS || c.Key == "" {
		return errors.New("there is no certificate to renew: name its key with --key")
	}
	ko, err := w.keyOptions()
	if err != nil {
		return err
	}
	p, err := w.places()
	if err != nil {
		return err
	}
	r, err := daemon.NewRenewal(ctx, c, ko, p, w.environ)
	if err != nil {
		return err
	}
	defer r.Close()
	k, err := r.Renew(ctx, func(client *enroll.Client, order enroll.Order) ([]*x509.Certificate, error) {
		if o.expiration > 0 {
			order.Expiration = o.expiration
		}
		return o.request(ctx, w, client, order)
	})
	if err != nil {
		return err
	}
	return o.stored(ctx, w, k)
}
