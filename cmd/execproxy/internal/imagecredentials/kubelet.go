package imagecredentials

import (
	"fmt"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials/ecr"
)

// Audience is what STS wants a service account's token to be for.
const Audience = "sts.amazonaws.com"

// KubeletConfig is a CredentialProviderConfig (kubelet.config.k8s.io/v1) under
// which kubelet calls the program by name: for ECR, and for what patterns say
// besides. With tokens, pods pull as the roles of their service accounts.
func KubeletConfig(program string, patterns []string, args []string, tokens bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# kubelet --image-credential-provider-config=THIS-FILE --image-credential-provider-bin-dir=DIRECTORY-OF-%s
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: %s
  apiVersion: %s
  defaultCacheDuration: 0s # each answer says how long it is good
  matchImages:
`, program, program, V1)
	for _, m := range append(ecr.MatchImages(), patterns...) {
		fmt.Fprintf(&b, "  - %q\n", m)
	}
	if len(args) > 0 {
		b.WriteString("  args:\n")
		for _, a := range args {
			fmt.Fprintf(&b, "  - %q\n", a)
		}
	}
	// A kubelet that systemd starts has no HOME. The units' own /run/execproxy and
	// /var/lib/execproxy have to be open to the users of their services.
	b.WriteString(`  env:
  - name: XDG_RUNTIME_DIR
    value: /run/execproxy-images
  - name: XDG_STATE_HOME
    value: /var/lib/execproxy-images
`)
	if tokens {
		fmt.Fprintf(&b, `  tokenAttributes:
    serviceAccountTokenAudience: %s
    cacheType: ServiceAccount
    requireServiceAccount: false
    optionalServiceAccountAnnotationKeys:
    - %s
`, Audience, RoleAnnotation)
	}
	return b.String()
}

// Matches are the patterns of the configuration's rules, for kubelet's matchImages.
func (c *Configuration) Matches() []string {
	var out []string
	for _, r := range c.Registries {
		out = append(out, r.pattern.String())
	}
	return out
}
