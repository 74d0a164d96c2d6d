package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

// overview is the usage text of the program.
func overview() string {
	var b strings.Builder
	b.WriteString(`execproxy authenticates Kubernetes API requests with keys that clients never see.

Usage: execproxy COMMAND [FLAG…]

`)
	for _, c := range commands() {
		if !c.hidden {
			fmt.Fprintf(&b, "  %-17s %s\n", c.name, c.short)
		}
	}
	b.WriteString("\nStart with `execproxy demo`, then `execproxy help kubeconfig`.\n")
	return b.String()
}

// help prints a command's usage to standard output: it was asked for.
func help(w *world, args []string) error {
	if len(args) == 0 {
		_, err := io.WriteString(w.stdout, overview())
		return err
	}
	c, rest, err := find(args)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usagef("unknown command %q; `execproxy help` lists them", strings.Join(args, " "))
	}
	_, err = io.WriteString(w.stdout, c.usage())
	return err
}

func (c *command) synopsis() string {
	s := "execproxy " + c.name
	if len(c.sub) > 0 {
		return s + " COMMAND [FLAG…]"
	}
	if c.flagSet(&options{}).HasFlags() {
		s += " [FLAG…]"
	}
	if c.args != "" {
		s += " " + c.args
	}
	return s
}

func (c *command) usage() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n\n", c.synopsis())
	if c.long != "" {
		fmt.Fprintf(&b, "%s\n", c.long)
	} else {
		fmt.Fprintf(&b, "%s.\n", c.short)
	}
	if len(c.sub) > 0 {
		b.WriteString("\nCommands:\n")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, sub := range c.sub {
			fmt.Fprintf(t, "  %s\t%s\n", sub.name, sub.short)
		}
		_ = t.Flush() // into memory
	}
	rows := c.flagRows()
	if len(rows) == 0 {
		return b.String()
	}
	b.WriteString("\nFlags:\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(t, "  %s\t%s\n", strings.TrimSpace(r.flag+" "+r.arg), r.usage)
	}
	_ = t.Flush() // into memory
	if len(c.groups) > 0 {
		b.WriteString("\nEvery flag" + c.ownFlags() + " can also be said in the environment\n" +
			"(--pin-source is EXECPROXY_PIN_SOURCE), in the --config file (pinSource) and in the\n" +
			"kubeconfig's exec extension. The first of these that says it wins.\n")
	}
	return b.String()
}

// ownFlags names the flags that are no field of the configuration, as exceptions.
func (c *command) ownFlags() string {
	var own []string
	if c.flags != nil {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.flags(set, &options{})
		set.SortFlags = false
		set.VisitAll(func(f *pflag.Flag) { own = append(own, "--"+f.Name) })
	}
	if len(own) == 0 {
		return ""
	}
	return " but " + strings.Join(own, ", ")
}

// A flagRow is one flag as documents show it.
type flagRow struct{ flag, arg, env, json, usage string }

func (c *command) flagRows() []flagRow {
	var rows []flagRow
	for _, f := range config.InGroups(c.groups...) {
		rows = append(rows, fieldRow(f))
	}
	if c.flags != nil {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.flags(set, &options{})
		set.SortFlags = false
		set.VisitAll(func(f *pflag.Flag) {
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			arg := ""
			if f.NoOptDefVal == "" {
				arg = strings.TrimSuffix(strings.ToUpper(f.Value.Type()), "ARRAY")
			}
			rows = append(rows, flagRow{flag: name, arg: arg, usage: f.Usage})
		})
	}
	return rows
}

func fieldRow(f *config.Field) flagRow {
	return flagRow{flag: "--" + f.Flag, arg: f.Arg, env: f.Env(), json: f.JSON(), usage: f.Usage}
}

// runDocs prints what documents take from the table: the manual page, or the
// README's table of flags.
func runDocs(_ context.Context, w *world, o *options) error {
	if len(o.operands) != 1 {
		return usagef("docs takes man or flags")
	}
	switch o.operands[0] {
	case "man":
		return write(w.stdout, manPage())
	case "flags":
		return write(w.stdout, flagTable())
	}
	return usagef("docs takes man or flags, got %q", o.operands[0])
}

func write(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}

// flagTable is the README's table.
func flagTable() string {
	var b strings.Builder
	b.WriteString("| flag | environment | file, extension | meaning |\n|---|---|---|---|\n")
	for _, f := range config.Fields {
		r := fieldRow(f)
		name := r.json
		switch {
		case f.Flag == "config":
			name = ""
		case f.Group == config.GroupCluster:
			name = r.json + "`, `upstream." + f.Flag
		}
		if name != "" {
			name = "`" + name + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", strings.TrimSpace(r.flag+" "+r.arg), r.env, name, r.usage)
	}
	return b.String()
}

// manPage is execproxy(1) in man(7) macros.
func manPage() string {
	var b strings.Builder
	b.WriteString(".TH EXECPROXY 1\n.SH NAME\nexecproxy \\- authenticate Kubernetes API requests with keys that clients never see\n.SH SYNOPSIS\n.B execproxy\nCOMMAND [FLAG…]\n.SH COMMANDS\n")
	for _, c := range flat(commands()) {
		if c.hidden {
			continue
		}
		fmt.Fprintf(&b, ".SS %s\n%s\n", roff(c.synopsis()), roff(c.longOrShort()))
		for _, r := range c.flagRows() {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(r.flag+" "+r.arg)), roff(r.usage))
		}
	}
	b.WriteString(".SH ENVIRONMENT\nEvery flag of the configuration can be said in the environment, weaker than on the command line.\n")
	for _, f := range config.Fields {
		fmt.Fprintf(&b, ".TP\n.B %s\nas \\-\\-%s\n", f.Env(), roff(f.Flag))
	}
	b.WriteString(".SH EXIT STATUS\n0; 1 a failure, one line on standard error; 2 wrong usage; of run: the child's, or 128 and the signal that ended it.\n")
	return b.String()
}

func (c *command) longOrShort() string {
	if c.long != "" {
		return c.long
	}
	return c.short
}

// roff escapes text for man(7).
func roff(s string) string {
	s = strings.ReplaceAll(s, `\`, `\e`)
	s = strings.ReplaceAll(s, "-", `\-`)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
