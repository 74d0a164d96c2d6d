package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo"
)

// runStatus lists this user's running proxies.
func runStatus(ctx context.Context, w *world, o *options) error {
	if err := errors.Join(o.noOperands(), o.checkOutput()); err != nil {
		return err
	}
	p, err := w.places()
	if err != nil {
		return err
	}
	list, err := running(ctx, p)
	if err != nil {
		return err
	}
	if o.output == "json" {
		return printJSON(w, struct {
			Proxies []daemon.Status `json:"proxies"`
		}{append([]daemon.Status{}, list...)})
	}
	if len(list) == 0 {
		fmt.Fprintln(w.stderr, "No proxies are running.")
		return nil
	}
	t := tabwriter.NewWriter(w.stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "ID\tSERVER\tAUTH\tIDENTITY\tCLIENTS\tREQUESTS\tSIGNATURES\tCERTIFICATE\tLISTENERS\tAGE")
	for _, s := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", s.ID, orNone(s.Server), s.Auth, orNone(s.Identity), s.Clients, s.Requests,
			s.Signatures, expiry(s.CertificateNotAfter), strings.Join(s.Listeners, ","), age(time.Since(s.StartedAt)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range list {
		if s.Reload != nil && s.Reload.Error != "" {
			s.Warnings = append(s.Warnings, "the configuration of now is not used: "+s.Reload.Error)
		}
		for _, warning := range append(s.Warnings, renewalTrouble(s.Renewal)...) {
			fmt.Fprintf(w.stderr, "warning: %s: %s\n", s.ID, warning)
		}
	}
	return nil
}

// running is this user's proxies. Where there are none, the directory may be
// another user's, and then that is no answer.
func running(ctx context.Context, p daemon.Places) ([]daemon.Status, error) {
	list := daemon.Running(ctx, p)
	if len(list) == 0 {
		return nil, p.Check()
	}
	return list, nil
}

// renewalTrouble is what somebody has to do about a renewal, or ought to know.
func renewalTrouble(r *daemon.RenewalStatus) (lines []string) {
	if r == nil {
		return nil
	}
	switch {
	case r.Approve != "":
		lines = append(lines, fmt.Sprintf("the certificate's renewal has waited for approval for %s; an administrator runs: %s", age(time.Since(*r.Since)), r.Approve))
	case r.Request != "":
		lines = append(lines, fmt.Sprintf("the certificate's renewal, certificate signing request %s, is %s", r.Request, r.Waits))
	}
	if r.LastError != "" {
		next := ""
		if r.Next != nil {
			next = "; tried again in " + age(time.Until(*r.Next))
		}
		lines = append(lines, "the certificate was not renewed: "+r.LastError+next)
	}
	return lines
}

func orNone(s string) string {
	if s == "" {
		return "<none>" // as kubectl prints it
	}
	return s
}

func expiry(t *time.Time) string {
	if t == nil {
		return "<none>"
	}
	left := time.Until(*t)
	if left <= 0 {
		return "expired"
	}
	return "expires in " + age(left)
}

// age prints a duration as kubectl's AGE column: its largest unit.
func age(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// runReload has proxies read their configuration anew.
func runReload(ctx context.Context, w *world, o *options) error {
	return o.each(ctx, w, "reload", func(p daemon.Places, s daemon.Status) error {
		read, err := daemon.Reconfigure(ctx, p, s)
		switch {
		case err != nil:
			return err
		case read:
			fmt.Fprintf(w.stdout, "proxy %s reloaded\n", s.ID)
		case !o.all:
			return fmt.Errorf("proxy %s reads no configuration: its plugin told it all, and starts another for a changed one; end it with `execproxy stop %s`", s.ID, s.ID)
		}
		return nil
	})
}

// runStop ends proxies and waits until they are gone.
func runStop(ctx context.Context, w *world, o *options) error {
	return o.each(ctx, w, "stop", func(p daemon.Places, s daemon.Status) error {
		if err := daemon.Stop(ctx, p, s); err != nil {
			return err
		}
		fmt.Fprintf(w.stdout, "proxy %s stopped\n", s.ID)
		return nil
	})
}

// each does something with the running proxies that the operands or --all name.
func (o *options) each(ctx context.Context, w *world, what string, do func(daemon.Places, daemon.Status) error) error {
	if o.all == (len(o.operands) > 0) {
		return usagef("%s needs the IDs or Unix sockets of proxies, or --all; `execproxy status` lists them", what)
	}
	p, err := w.places()
	if err != nil {
		return err
	}
	list, err := running(ctx, p)
	if err != nil {
		return err
	}
	var chosen []daemon.Status
	if o.all {
		chosen = list
	}
	for _, id := range o.operands {
		socket := strings.TrimPrefix(id, "unix://") // what a unit knows of its proxy
		i := slices.IndexFunc(list, func(s daemon.Status) bool { return s.ID == id || filepath.IsAbs(socket) && s.Socket == socket })
		if i < 0 {
			return fmt.Errorf("no proxy %q is running; `execproxy status` lists them", id)
		}
		chosen = append(chosen, list[i])
	}
	var errs []error
	for _, s := range chosen {
		if err := do(p, s); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func printJSON(w *world, v any) error {
	e := json.NewEncoder(w.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func runVersion(_ context.Context, w *world, o *options) error {
	if err := errors.Join(o.noOperands(), o.checkOutput()); err != nil {
		return err
	}
	if o.output == "json" {
		return printJSON(w, map[string]string{"version": w.version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
	}
	_, err := fmt.Fprintf(w.stdout, "execproxy %s %s %s/%s\n", w.version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// version is what the binary was built from.
func version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok || b.Main.Version == "" {
		return "(devel)"
	}
	return b.Main.Version
}

// runDemo plays the whole exchange.
func runDemo(ctx context.Context, w *world, o *options) error {
	if err := o.noOperands(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the execproxy binary: %w", err)
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	out, ok := w.stdout.(*os.File)
	return demo.Run(ctx, demo.Options{Executable: self, Out: w.stdout, Color: ok && term.IsTerminal(int(out.Fd()))})
}
