// Package plugin runs another exec credential plugin as client-go does (KEP-541), and
// holds it to what client-go leaves open: it ends within a bounded time, and its children
// with it; it prints one document of a bounded size, of the version that it was asked in;
// and what it hands out can be used.
package plugin

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/signer/token"
)

// ending is how long pipes that somebody else holds are read after a plugin's end.
const ending = time.Second

// Options say what to run.
type Options struct {
	Command    string
	Args       []string
	Env        []string // the whole environment; of several values the last one counts
	APIVersion string
	Cluster    *clientauthentication.Cluster // nil: the plugin is not told

	// Stdin and Stderr are the user's, of a plugin that may be interactive; nil of one that
	// may not. Then it stays in our process group, without which it could not read from the
	// terminal.
	Stdin  io.Reader
	Stderr io.Writer
}

// An Error says that a plugin gave nothing that can be used. Its text is one line with no
// secret in it, as far as the plugin's own last words have none.
type Error struct {
	Command string
	Err     error
	Stderr  string // the last line that it wrote there
}

func (e *Error) Error() string {
	text := fmt.Sprintf("exec plugin %s: %v", filepath.Base(e.Command), e.Err)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// A lateError is the end of a plugin that took too long.
type lateError struct{ after time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("it did not end within %v and was killed: run it by hand and see what it waits for", e.after.Round(time.Second))
}

func (e *lateError) Unwrap() error { return context.DeadlineExceeded }

// Credential runs the plugin to its end, at most until ctx ends, and returns what it
// handed out. It fails with an *[Error].
func Credential(ctx context.Context, o Options) (*clientauthentication.Status, error) {
	s, stderr, err := run(ctx, o)
	if err != nil {
		if o.Stderr != nil { // the user has read it
			stderr = ""
		}
		return nil, &Error{Command: o.Command, Err: err, Stderr: stderr}
	}
	return s, nil
}

func run(ctx context.Context, o Options) (*clientauthentication.Status, string, error) {
	info := clientauthentication.ExecCredential{
		APIVersion: o.APIVersion, Kind: clientauthentication.Kind,
		Spec: clientauthentication.Spec{Cluster: o.Cluster, Interactive: o.Stdin != nil},
	}
	asked, err := info.EncodeInfo()
	if err != nil {
		return nil, "", err
	}
	var said tail
	stdout := &document{}
	cmd := exec.CommandContext(ctx, o.Command, o.Args...)
	cmd.Env = append(o.Env[:len(o.Env):len(o.Env)], clientauthentication.InfoVariable+"="+string(asked))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.Stdin, stdout, &said
	if o.Stderr != nil {
		cmd.Stderr = io.MultiWriter(&said, o.Stderr)
	}
	cmd.WaitDelay = ending
	if o.Stdin == nil {
		process.Apart(cmd)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrDot) {
			return nil, "", errors.New("it is not installed, or not in PATH: install it, or name it by its full path (--exec-command)")
		}
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, "", fmt.Errorf("it cannot be started: %w", err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case stdout.over:
		return nil, "", fmt.Errorf("it printed more than %d bytes: it must print one ExecCredential", clientauthentication.MaxAnswer)
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, said.line(), &lateError{time.Since(began)}
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case errors.As(err, &exit):
		return nil, said.line(), fmt.Errorf("it failed (%s)", exit.ProcessState)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // somebody that it left behind holds a pipe
		return nil, said.line(), err
	}
	s, err := answer(stdout.data, o.APIVersion, time.Now())
	return s, "", err
}

// answer reads what a plugin printed.
func answer(data []byte, version string, now time.Time) (*clientauthentication.Status, error) {
	got, err := clientauthentication.DecodeAnswer(bytes.NewReader(data))
	if err != nil {
		var probe struct {
			APIVersion string `json:"apiVersion"`
		}
		if json.Unmarshal(data, &probe) == nil && strings.HasPrefix(probe.APIVersion, group) && plain(probe.APIVersion) && probe.APIVersion != version {
			return nil, mismatch(version, probe.APIVersion)
		}
		return nil, err
	}
	switch {
	case got.APIVersion != version:
		return nil, mismatch(version, got.APIVersion)
	case !json.Valid(data):
		return nil, errors.New("it printed more than one document: it must print one ExecCredential and nothing else")
	case got.Status.ProxyConfig != nil:
		return nil, errors.New("it answers with a proxy of its own, and two proxies in a row are one too many: name the credential that stands behind it")
	}
	if _, err := Usable(got.Status, now); err != nil {
		return nil, err
	}
	return got.Status, nil
}

const group = "client.authentication.k8s.io/"

func mismatch(asked, got string) error {
	return fmt.Errorf("it was asked for %s and answered %s: set --exec-api-version to what it speaks", asked, got)
}

func plain(s string) bool {
	return len(s) < 64 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// Usable makes a credential of an answer, or says why it cannot be used at a time. A
// certificate's end is the credential's where that is sooner.
func Usable(s *clientauthentication.Status, now time.Time) (*token.Credential, error) {
	k := &token.Credential{Token: s.Token, Expires: s.ExpirationTimestamp}
	if s.ClientCertificateData != "" {
		pair, err := tls.X509KeyPair([]byte(s.ClientCertificateData), []byte(s.ClientKeyData))
		if err != nil {
			return nil, errors.New("its certificate and key are no pair in PEM")
		}
		k.CertificatePEM, k.KeyPEM = []byte(s.ClientCertificateData), []byte(s.ClientKeyData)
		switch leaf := pair.Leaf; {
		case now.Before(leaf.NotBefore):
			return nil, fmt.Errorf("its certificate is not valid before %s: set this machine's clock", leaf.NotBefore.UTC().Format(time.RFC3339))
		case k.Expires.IsZero() || leaf.NotAfter.Before(k.Expires):
			k.Expires = leaf.NotAfter
		}
	}
	switch err := k.Check(now); {
	case errors.Is(err, token.ErrExpired):
		return nil, fmt.Errorf("%w: log in with it anew, or set this machine's clock", err)
	case err != nil:
		return nil, fmt.Errorf("what it handed out cannot be used: %w", err)
	}
	return k, nil
}

// Status is the answer that hands out a credential.
func Status(k *token.Credential) *clientauthentication.Status {
	return &clientauthentication.Status{
		ExpirationTimestamp: k.Expires, Token: k.Token,
		ClientCertificateData: string(k.CertificatePEM), ClientKeyData: string(k.KeyPEM),
	}
}

// A document is what a plugin prints, up to a bound.
type document struct {
	data []byte // no bytes.Buffer, whose ReadFrom knows no bound
	over bool
}

func (d *document) Write(p []byte) (int, error) {
	if len(d.data)+len(p) > clientauthentication.MaxAnswer {
		d.over = true
		return 0, errors.New("too much")
	}
	d.data = append(d.data, p...)
	return len(p), nil
}

// A tail is the end of what a plugin says.
type tail struct{ data []byte }

const (
	tailSize    = 4 << 10
	longestLine = 300 // bytes
)

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - tailSize; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

// line is the last line that is not blank, fit to be part of another. What looks as if a
// secret stood in it is left out.
func (t *tail) line() string {
	lines := bytes.Split(bytes.TrimSpace(t.data), []byte("\n"))
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(string(bytes.TrimSpace(lines[len(lines)-1])), ""))
	words := strings.Fields(line)
	for i, w := range words {
		if before, _, query := strings.Cut(w, "?"); query && strings.Contains(w, "=") {
			words[i] = before + "?…"
		}
		if secret(w) {
			words[i] = "…"
		}
	}
	line = strings.Join(words, " ")
	if len(line) > longestLine {
		line = strings.ToValidUTF8(line[:longestLine], "") + "…"
	}
	return line
}

// secret tells a word that may be a token: no word of a sentence is as long and has
// neither a slash nor a dot followed by something readable in it.
func secret(w string) bool {
	if strings.HasPrefix(w, "eyJ") || strings.Contains(w, "k8s-aws-v1.") {
		return true
	}
	return len(w) > 40 && !strings.ContainsAny(w, `/\`)
}
