// Package cli is the command line of execproxy: one table of commands, from
// which dispatch, usage texts, the manual page and the README's tables come.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// Exit codes. `run` exits with its child's.
const (
	exitFailure = 1
	exitUsage   = 2
)

// A world is what a command sees of the process around it.
type world struct {
	program string   // argv[0]
	args    []string // without the program's name
	environ []string
	lookup  func(string) (string, bool)
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	dir     string // working directory
	version string
}

func (w *world) getenv(name string) string {
	v, _ := w.lookup(name)
	return v
}

func (w *world) places() (daemon.Places, error) { return daemon.FindPlaces(w.getenv) }

// Main runs the program and returns its exit code.
func Main() int {
	dir, err := os.Getwd()
	if err != nil {
		dir = "" // a relative path is then an error that says so
	}
	return run(context.Background(), &world{
		program: os.Args[0], args: os.Args[1:], environ: os.Environ(), lookup: os.LookupEnv,
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		dir: dir, version: version(),
	})
}

// A command is one row of the table.
type command struct {
	name   string
	args   string // usage of its operands
	short  string // one line
	long   string // what somebody in a hurry must know
	groups []config.Group
	flags  func(*pflag.FlagSet, *options)
	hidden bool
	sub    []*command // of a command that is only a family's name
	run    func(context.Context, *world, *options) error
}

// options are the flags that only single commands have.
type options struct {
	command    *command
	set        *pflag.FlagSet
	operands   []string
	kubeconfig string
	context    string
	executable string
	provider   string // of ClusterProfiles
	output     string
	all        bool
	direct     bool
	began      time.Time // this call of the plugin

	clusterInfo bool // kubeconfig: the client tells the plugin of its cluster

	algorithm  string        // of a key to be made
	user       string        // of a certificate to be asked for
	groups     []string      // the same
	expiration time.Duration // the same
	timeout    time.Duration // of waiting for it
}

// A usageError is wrong usage: exit 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, a ...any) error { return &usageError{fmt.Errorf(format, a...)} }

// An exitError ends the program with a code and no words: the child said them.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func run(ctx context.Context, w *world) int {
	err := dispatch(ctx, w)
	var (
		code  exitError
		usage *usageError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintf(w.stderr, "execproxy: %s\n", oneLine(err.Error()))
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// oneLine keeps an error on the one line that a client's log has for it.
func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\r", "")
	return strings.ReplaceAll(s, "\n", "; ")
}

func dispatch(ctx context.Context, w *world) error {
	args := w.args
	_, plugin := w.lookup(clientauthentication.InfoVariable)
	switch {
	case w.calledAsProvider():
		args = append([]string{"image-credentials"}, args...)
	case plugin && (len(args) == 0 || strings.HasPrefix(args[0], "-") && !isHelp(args[0])):
		args = append([]string{"exec"}, args...)
	case len(args) == 0:
		fmt.Fprint(w.stderr, overview())
		return exitError(exitUsage)
	case isHelp(args[0]) || args[0] == "help":
		return help(w, args[1:])
	case args[0] == "--version":
		args = []string{"version"}
	}
	c, rest, err := find(args)
	if err != nil {
		return err
	}
	if len(c.sub) > 0 {
		if len(rest) > 0 && isHelp(rest[0]) {
			return help(w, []string{c.name})
		}
		fmt.Fprint(w.stderr, c.usage())
		return exitError(exitUsage)
	}
	o := &options{command: c}
	set := c.flagSet(o)
	if err := set.Parse(rest); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return help(w, strings.Fields(c.name))
		}
		return usagef("%w; `execproxy help %s` lists its flags", err, c.name)
	}
	o.set, o.operands = set, set.Args()
	return c.run(ctx, w, o)
}

func isHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// find returns the command that args begin with, and what follows its name.
func find(args []string) (*command, []string, error) {
	family, within := commands(), ""
	for n := 0; n < len(args); n++ {
		i := slices.IndexFunc(family, func(c *command) bool { return c.name == strings.TrimSpace(within+" "+args[n]) })
		if i < 0 {
			if within == "" {
				return nil, nil, usagef("unknown command %q; `execproxy help` lists them", args[n])
			}
			return nil, nil, usagef("unknown command %q; `execproxy help %s` lists those of %s", within+" "+args[n], within, within)
		}
		c := family[i]
		if len(c.sub) == 0 || n+1 == len(args) || strings.HasPrefix(args[n+1], "-") {
			return c, args[n+1:], nil
		}
		family, within = c.sub, c.name
	}
	return nil, nil, usagef("no command; `execproxy help` lists them")
}

// flat is every command that can be run, in the table's order.
func flat(family []*command) (all []*command) {
	for _, c := range family {
		if len(c.sub) > 0 {
			all = append(all, flat(c.sub)...)
			continue
		}
		all = append(all, c)
	}
	return all
}

// flagSet is the command's flags: its groups of the configuration's table, and
// its own.
func (c *command) flagSet(o *options) *pflag.FlagSet {
	set := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	set.SetInterspersed(c.name != "run") // after CMD come CMD's own flags
	for _, f := range config.InGroups(c.groups...) {
		flag := set.VarPF(&fieldValue{field: f}, f.Flag, "", f.Usage)
		if f.Switch() {
			flag.NoOptDefVal = "true"
		}
	}
	if c.flags != nil {
		c.flags(set, o)
	}
	return set
}

// fieldValue keeps what a flag said until the weaker sources have been read.
type fieldValue struct {
	field   *config.Field
	values  []string
	differs bool // said again, and not the same
}

func (v *fieldValue) String() string { return strings.Join(v.values, ",") }
func (v *fieldValue) Type() string   { return strings.ToLower(v.field.Arg) }
func (v *fieldValue) Set(s string) error {
	if !v.field.List {
		v.differs = v.differs || len(v.values) > 0 && v.values[0] != s
		v.values = nil
	}
	v.values = append(v.values, s)
	return nil
}

// load reads the command's configuration from all its sources.
func (o *options) load(w *world, extension []byte) (*config.Config, error) {
	file := ""
	if f := o.set.Lookup("config"); f != nil {
		file = f.Value.String()
	}
	c, err := config.Load(config.Sources{
		Environ: w.lookup, File: file, Extension: extension, Dir: w.dir, Handed: o.set.Lookup("extension-policy") != nil,
		Flags: func(c *config.Config) error {
			var first error
			o.set.Visit(func(f *pflag.Flag) {
				v, ok := f.Value.(*fieldValue)
				if !ok || first != nil {
					return
				}
				if err := v.field.SetAll(c, v.values, w.dir); err != nil {
					first = &usageError{fmt.Errorf("--%s: %w", f.Name, err)}
				}
			})
			return first
		},
	})
	if err != nil {
		return nil, err
	}
	c.Direct = o.direct
	return c, nil
}

// complete checks the sum of all sources.
func (o *options) complete(c *config.Config) error { return o.usage(c.Complete()) }

// usage makes wrong usage of what a flag said, or should have.
func (o *options) usage(err error, required ...string) error {
	var field *config.FieldError
	if errors.As(err, &field) && field.Source == "" && (o.set.Changed(field.Field) || slices.Contains(required, field.Field)) {
		return &usageError{fmt.Errorf("--%s: %w", field.Field, field.Err)}
	}
	return err
}

// noOperands refuses what would otherwise be ignored.
func (o *options) noOperands() error {
	if len(o.operands) > 0 {
		if first := o.operands[0]; first == "true" || first == "false" {
			return usagef("%s takes no argument, got %q; write --FLAG=%s", o.command.name, first, first)
		}
		return usagef("%s takes no argument, got %q; `execproxy help %s`", o.command.name, o.operands[0], o.command.name)
	}
	return nil
}

// checkOutput reads -o.
func (o *options) checkOutput() error {
	if o.output != "" && o.output != "json" {
		return usagef("-o %s: only json is known", o.output)
	}
	return nil
}
