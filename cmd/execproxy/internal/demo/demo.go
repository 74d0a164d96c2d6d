// Package demo plays the whole exchange on one machine, with nothing but the binary: an embedded API server that
// verifies client certificates and SigV4; a client that takes a lock, executes the binary as exec credential plugin
// (KEP-2718), speaks to the API server through the private proxy, and lets go; the daemon's end. It prints what it
// sees, and stops at the first thing that is not as it must be.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
)

// Options of Run. Executable and Out are needed.
type Options struct {
	// Executable is the execproxy to run as plugin; normally the one that runs the demonstration.
	Executable string
	// Out is where the steps are printed.
	Out io.Writer
	// Color marks success and failure in color; for terminals.
	Color bool
	// Environ is the environment PATH and the like are taken from, never a credential or a setting; default os.Environ.
	Environ []string
	// TempDir is where the private directory is made; default os.TempDir.
	TempDir string
}

// Run runs the demonstration. A step that fails ends it with a *StepError; so does the end of ctx. Whatever the
// outcome, no process, file or socket is left behind.
func Run(ctx context.Context, o Options) (err error) {
	if o.Executable == "" || o.Out == nil {
		return errors.New("demo: Options need Executable and Out")
	}
	if o.Executable, err = filepath.Abs(o.Executable); err != nil {
		return fmt.Errorf("demo: finding the binary: %w", err)
	}
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	if o.TempDir == "" {
		o.TempDir = os.TempDir()
	}
	start := time.Now()
	st := &steps{out: o.Out, color: o.Color}
	p, err := newPlace(o.TempDir, o.Environ)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d := &demo{Options: o, steps: st, place: p, secret: newSecret(), token: newSecret()}
	err = d.run(ctx)
	if cerr := d.close(context.WithoutCancel(ctx)); cerr != nil && err == nil {
		err = fmt.Errorf("demo: cleaning up: %w", cerr)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Out, "\n%d steps in %s, all as they must be; nothing is left behind\n", st.count, millis(time.Since(start)))
	return err
}

// demo is one run and what it has to put away.
type demo struct {
	Options
	*steps
	place    *place
	secret   string // of the access key
	token    string // of its session
	server   *apiserver.Server
	sessions []*session
}

func (d *demo) run(ctx context.Context) error {
	for _, part := range []func(context.Context) error{d.apiServer, d.certificate, d.sigV4} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// apiServer starts the embedded API server.
func (d *demo) apiServer(ctx context.Context) error {
	d.begin("The API server, embedded")
	if err := d.do(ctx, "serve", func(context.Context) (string, error) {
		s, err := apiserver.Start(apiserver.Options{
			Pods:    []string{seeded},
			Region:  region,
			Service: service,
			AccessKeys: map[string]apiserver.AccessKey{
				accessKey: {Secret: d.secret, SessionToken: d.token, User: robot.user, Groups: robot.groups},
			},
		})
		if err != nil {
			return "", err
		}
		d.server = s
		return s.URL() + ", HTTP/2 and HTTP/1.1, verifies client certificates and SigV4", nil
	}); err != nil {
		return err
	}
	return d.do(ctx, "stranger", func(ctx context.Context) (string, error) {
		rt := directly(d.server.ClientConfig())
		defer rt.CloseIdleConnections()
		message, err := caller{d.server.URL(), rt}.refused(ctx, "/version")
		if err != nil {
			return "", err
		}
		return "no credential: " + message, nil
	})
}

// close puts everything away: locks first, for the daemons end with them.
func (d *demo) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience/3)
	defer cancel()
	var errs []error
	var ends []func(context.Context) error
	stray := slices.ContainsFunc(d.sessions, func(s *session) bool { return !s.ended })
	if stray { // interrupted, or failed: find out whose end is to be waited for
		list, _ := d.proxies(ctx)
		for _, p := range list {
			if end, err := process.WatchEnd(p.PID); err == nil {
				ends = append(ends, end)
			}
		}
	}
	for _, s := range d.sessions {
		errs = append(errs, s.close())
	}
	for _, end := range ends {
		errs = append(errs, end(ctx))
	}
	if stray {
		// A daemon may have been starting when it was looked for. Its lock is gone, so that it ends by itself, if this
		// does not find it either; there is nothing to complain about.
		_, _ = d.place.command(ctx, d.Executable, "stop", "--all")
	}
	if d.server != nil {
		errs = append(errs, d.server.Close())
	}
	return errors.Join(append(errs, d.place.remove())...)
}
