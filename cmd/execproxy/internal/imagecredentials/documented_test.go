package imagecredentials

import (
	"os"
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
