package cli

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/enroll"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
	"github.com/execproxy/execproxy/signer"
)

// keyCommand is the family of commands around one key.
func keyCommand() *command {
	key := []config.Group{config.GroupKey, config.GroupFile}
	return &command{
		name: "key", short: "keys in files, TPMs and tokens, and their certificates",
		long: `A key is made where it stays. The cluster's own CertificateSigningRequest API
issues its certificate, and renews it:

  execproxy key create --key tpm:$HOME/.kube/tpm.pem
  execproxy key enroll --key tpm:$HOME/.kube/tpm.pem --user jane --group dev
  execproxy kubeconfig --key tpm:$HOME/.kube/tpm.pem > ~/.kube/tpm.config`,
		sub: []*command{
			{
				name: "key create", short: "make a key in a file, a TPM or a token",
				long: `Makes the key that --key names, where there is none yet: a PEM file or a TPM's
TSS2 file of mode 0600, a persistent handle of a TPM, or a key pair on a token,
from which it can never be read.`,
				groups: key,
				flags: func(s *pflag.FlagSet, o *options) {
					s.StringVar(&o.algorithm, "algorithm", string(signer.ECP256), "kind of key: "+algorithms()+" (default "+string(signer.ECP256)+")")
				},
				run: runKeyCreate,
			},
			{
				name: "key show", short: "what is known of a key and its certificate",
				long: `Opens the key, has it sign once with every scheme, and prints what it is, where
it lives, which TLS signatures it can make and how long its certificate lasts.`,
				groups: key, flags: outputFlag, run: runKeyShow,
			},
			{
				name: "key csr", short: "print a certificate signing request (PKCS#10)",
				long: `Prints a request for --user and --group in PEM, for a certificate authority of
your own. Without --user it is for the subject of the certificate that is there.`,
				groups: key, flags: subjectFlags, run: runKeyCSR,
			},
			{
				name: "key enroll", short: "have the cluster issue a certificate for a key",
				long: `Submits a CertificateSigningRequest with the credentials of a kubeconfig's
context, waits until it is approved and issued, and stores the certificate with
the key: in its file, in --cert, or on the token. Ended early, the same command
goes on with the request that is there.`,
				groups: []config.Group{config.GroupKey, config.GroupSigner, config.GroupFile},
				flags: func(s *pflag.FlagSet, o *options) {
					kubeconfigFlags(s, o)
					subjectFlags(s, o)
					waitFlags(s, o)
				},
				run: runKeyEnroll,
			},
			{
				name: "key renew", short: "renew a key's certificate now",
				long: `Does what a running proxy does by itself: asks the cluster for the next
certificate with the one that is there, for the same subject, waits for it and
stores it. --renew new-key makes a new key as well. Running proxies take it over.`,
				groups: []config.Group{config.GroupKey, config.GroupRenew, config.GroupSigner, config.GroupCluster, config.GroupFile},
				flags: func(s *pflag.FlagSet, o *options) {
					kubeconfigFlags(s, o)
					waitFlags(s, o)
				},
				run: runKeyRenew,
			},
		},
	}
}

func algorithms() string {
	var names []string
	for _, a := range signer.Algorithms() {
		names = append(names, string(a))
	}
	return strings.Join(names, ", ")
}

func subjectFlags(s *pflag.FlagSet, o *options) {
	s.StringVar(&o.user, "user", "", "user whom the certificate is for (CN); without it the subject of the present one")
	s.StringArrayVar(&o.groups, "group", nil, "group of that user (O); repeatable")
}

func waitFlags(s *pflag.FlagSet, o *options) {
	s.DurationVar(&o.expiration, "expiration", 0, "how long the certificate shall live, at least 10m; without it as the present one, or as the cluster likes")
	s.DurationVar(&o.timeout, "timeout", 0, "give up waiting after this time; without it when the request is gone, after a day")
}

// loadKey reads the configuration of the key alone.
func (o *options) loadKey(w *world) (*config.Config, error) {
	if err := o.noOperands(); err != nil {
		return nil, err
	}
	c, err := o.load(w, nil)
	if err != nil {
		return nil, err
	}
	return c, o.usage(c.CompleteKey(), "key")
}

// keyOptions are what homes need of this process. Whoever runs a command of the
// key sits at a terminal, or there is none.
func (w *world) keyOptions() (keyhome.Options, error) {
	p, err := w.places()
	if err != nil {
		return keyhome.Options{}, err
	}
	o, err := daemon.Homes(p, w.environ)
	o.Ask = true
	return o, err
}

// runKeyCreate makes a key.
func runKeyCreate(ctx context.Context, w *world, o *options) error {
	c, err := o.loadKey(w)
	if err != nil {
		return err
	}
	algorithm, err := signer.ParseAlgorithm(o.algorithm)
	if err != nil {
		return &usageError{fmt.Errorf("--algorithm: %w", err)}
	}
	ko, err := w.keyOptions()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	k, err := keyhome.Create(ctx, c, ko, algorithm)
	if err != nil {
		return err
	}
	defer k.Close()
	where := map[string]string{config.HomeFile: "in a file", config.HomeTPM: "in the TPM", config.HomePKCS11: "on the token"}[k.Home()]
	if _, err = fmt.Fprintf(w.stdout, "%s key created %s: %s\n", k.Kind(), where, k.Location()); err != nil {
		return err
	}
	fmt.Fprintf(w.stderr, "next: have the cluster certify it, with the same --key: execproxy key enroll --key … --user NAME --group NAME\n")
	return nil
}

// A shownKey is what `key show` tells; its JSON is for scripts.
type shownKey struct {
	Home        string            `json:"home"`
	Location    string            `json:"location"`
	Kind        string            `json:"kind"`
	Fingerprint string            `json:"fingerprint"` // SHA-256 of the public key (SPKI)
	Schemes     []string          `json:"signatureSchemes"`
	Certificate *shownCertificate `json:"certificate,omitempty"`
	Warnings    []string          `json:"warnings,omitempty"`
}

type shownCertificate struct {
	Location  string    `json:"location"`
	Subject   string    `json:"subject"`
	Issuer    string    `json:"issuer"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// runKeyShow tells what a key is.
func runKeyShow(ctx context.Context, w *world, o *options) error {
	if err := o.checkOutput(); err != nil {
		return err
	}
	k, _, err := o.openKey(ctx, w)
	if err != nil {
		return err
	}
	defer k.Close()
	s := show(k)
	if o.output == "json" {
		return printJSON(w, s)
	}
	fmt.Fprintf(w.stdout, "Key:          %s, %s\nIn:           %s\nFingerprint:  %s\nSignatures:   %s\n",
		s.Kind, s.Home, s.Location, s.Fingerprint, strings.Join(s.Schemes, ", "))
	if c := s.Certificate; c != nil {
		fmt.Fprintf(w.stdout, "Certificate:  %s\n  Subject:    %s\n  Issuer:     %s\n  Serial:     %s\n  Not before: %s\n  Not after:  %s (%s)\n",
			c.Location, c.Subject, c.Issuer, c.Serial, c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339), expiry(&c.NotAfter))
	} else {
		fmt.Fprintln(w.stdout, "Certificate:  none; `execproxy key enroll` has the cluster issue one")
	}
	for _, warning := range s.Warnings {
		fmt.Fprintf(w.stderr, "warning: %s\n", warning)
	}
	return nil
}

func show(k *keyhome.Key) *shownKey {
	s := &shownKey{
		Home: k.Home(), Location: k.Location(), Kind: k.Kind(), Fingerprint: "sha256:" + k.Fingerprint(), Warnings: k.Warnings(),
	}
	for _, scheme := range k.Schemes() {
		s.Schemes = append(s.Schemes, scheme.String())
	}
	if leaf := k.Leaf(); leaf != nil {
		if err := k.Check(); err != nil {
			s.Warnings = append(s.Warnings, err.Error())
		}
		s.Certificate = &shownCertificate{
			Location: k.CertificateLocation(), Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(),
			Serial: leaf.SerialNumber.Text(16), NotBefore: leaf.NotBefore.UTC(), NotAfter: leaf.NotAfter.UTC(),
		}
	}
	return s
}

// openKey opens the key, with its certificate if it has one.
func (o *options) openKey(ctx context.Context, w *world) (*keyhome.Key, *config.Config, error) {
	c, err := o.loadKey(w)
	if err != nil {
		return nil, nil, err
	}
	ko, err := w.keyOptions()
	if err != nil {
		return nil, nil, err
	}
	k, err := keyhome.OpenBare(ctx, c, ko)
	return k, c, err
}

// runKeyCSR prints a request for a certificate.
func runKeyCSR(ctx context.Context, w *world, o *options) error {
	k, _, err := o.openKey(ctx, w)
	if err != nil {
		return err
	}
	defer k.Close()
	subject, err := o.subject(k)
	if err != nil {
		return err
	}
	csr, err := enroll.NewRequest(k, subject)
	if err != nil {
		return err
	}
	_, err = w.stdout.Write(csr)
	return err
}

// subject is whom the certificate is for, as Kubernetes reads it: the user is the
// common name, the groups are the organisations.
func (o *options) subject(k *keyhome.Key) (pkix.Name, error) {
	leaf := k.Leaf()
	switch {
	case slices.ContainsFunc(o.groups, func(g string) bool { return g == "" || strings.Contains(g, ",") }):
		return pkix.Name{}, usagef("--group: %q: name one group each time, and say it once for each", o.groups)
	case o.user != "":
		groups := slices.Clone(o.groups)
		slices.Sort(groups)
		return pkix.Name{CommonName: o.user, Organization: slices.Compact(groups)}, nil
	case len(o.groups) > 0:
		return pkix.Name{}, usagef("--group goes with --user: say whom the certificate is for")
	case leaf == nil:
		return pkix.Name{}, usagef("the key has no certificate yet; say whom it is for: --user NAME, and --group NAME for each group")
	}
	return pkix.Name{CommonName: leaf.Subject.CommonName, Organization: leaf.Subject.Organization}, nil
}

// unlock is what the plugin hands to the daemon, which can ask nobody.
func (w *world) unlock(ctx context.Context, c *config.Config, interactive bool) ([]byte, error) {
	if c.Auth != config.AuthMTLS || c.Key == "" {
		return nil, nil
	}
	o, err := w.keyOptions()
	if err != nil {
		return nil, err
	}
	o.Ask = interactive
	return keyhome.Handover(ctx, c, o)
}
