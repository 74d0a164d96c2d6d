package imagecredentials

import (
	"os"
	"path"
	"strings"
	"testing"
)

// TestDocumented: the configuration that the page shows is one.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/image-credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok := strings.Cut(string(page), "```\n# --registries FILE")
	example, _, ok2 := strings.Cut(example, "```")
	if !ok || !ok2 {
		t.Fatal("the page shows no configuration")
	}
	c, err := parseConfiguration([]byte("#" + example))
	if err != nil || len(c.Registries) != 3 || c.DockerConfig == "" {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestApartFromUnits: kubelet's daemon makes its directories root's alone; the units
// have theirs below ones that the users of their services get into.
func TestApartFromUnits(t *testing.T) {
	unit, err := os.ReadFile("../../../../deploy/systemd/execproxy@.service")
	if err != nil {
		t.Fatal(err)
	}
	config := KubeletConfig("p", nil, nil, false)
	for setting, c := range map[string]struct{ variable, top string }{
		"RuntimeDirectory=": {"XDG_RUNTIME_DIR", "/run"}, "StateDirectory=": {"XDG_STATE_HOME", "/var/lib"},
	} {
		_, theirs, ok := strings.Cut(string(unit), "\n"+setting)
		_, ours, ok2 := strings.Cut(config, "name: "+c.variable+"\n    value: ")
		theirs, _, _ = strings.Cut(theirs, "\n")
		ours, _, _ = strings.Cut(ours, "\n")
		if !ok || !ok2 || strings.HasPrefix(path.Join(c.top, theirs)+"/", path.Join(ours, "execproxy")+"/") {
			t.Errorf("%s%s and %s=%s", setting, theirs, c.variable, ours)
		}
	}
}
