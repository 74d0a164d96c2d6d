//go:build linux

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeStreamRights: who may open a stream, over which protocol. What docs/streams.md
// says of rights is this test's table.
func TestNodeStreamRights(t *testing.T) {
	t.Parallel()
	r := newRoute(t, "mtls", "websocket")
	r.pod(t)
	plain := map[string]string{}
	for user, verbs := range map[string][]string{"getter": {"get"}, "creator": {"create"}, "both": {"get", "create"}} {
		rules := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"pods/exec", "pods/portforward"}, Verbs: verbs}}
		_, err := suite.admin.RbacV1().Roles(r.ns).Create(t.Context(), &rbac.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}, metav1.CreateOptions{})
		must(t, err)
		_, err = suite.admin.RbacV1().RoleBindings(r.ns).Create(t.Context(), &rbac.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: user},
			Subjects:   []rbac.Subject{{Kind: rbac.UserKind, APIGroup: rbac.GroupName, Name: user}},
		}, metav1.CreateOptions{})
		must(t, err)
		cert, key := r.user(user)
		plain[user] = r.home.kubeconfig("plain-"+user, suite.cluster.API.URL, cert, key)
	}
	for _, c := range []struct {
		user, protocol string
		want           []string // verbs, each with the API server's answer
	}{
		{"both", "websocket", []string{"get 101"}},
		{"both", "spdy", []string{"create 101"}},
		// Since Kubernetes 1.35 a stream needs create whatever it is; kubectl tries SPDY after a refusal.
		{"getter", "websocket", []string{"create 403", "get 403"}},
		{"getter", "spdy", []string{"create 403"}},
		{"creator", "websocket", []string{"create 101", "get 403"}},
		{"creator", "spdy", []string{"create 101"}},
	} {
		r.kubeconfig = r.proxied("--kubeconfig", plain[c.user])
		r.env["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"] = map[string]string{"websocket": "true", "spdy": "false"}[c.protocol]
		got := r.run(r.args("exec", "p", "--", "echo", c.user, c.protocol)...)
		allowed := slices.ContainsFunc(c.want, func(s string) bool { return strings.HasSuffix(s, " 101") })
		if allowed && got.stdout != c.user+" "+c.protocol+"\n" {
			t.Errorf("%s, %s: %s", c.user, c.protocol, got)
		}
		if !allowed && (got.code == 0 || !strings.Contains(got.stderr, "pods/exec")) {
			t.Errorf("%s, %s: %s; want the API server's refusal", c.user, c.protocol, got)
		}
		var verbs []string
		eventually(t, patience, func() error {
			verbs = nil
			for _, e := range auditEvents(t, suite.cluster.API, "/api/v1/namespaces/"+r.ns+"/pods/p/exec?command=echo&command="+c.user+"&command="+c.protocol) {
				verbs = append(verbs, fmt.Sprint(e.Verb, " ", e.ResponseStatus.Code))
			}
			slices.Sort(verbs)
			if !slices.Equal(verbs, c.want) {
				return fmt.Errorf("%s, %s: the API server saw %q, want %q", c.user, c.protocol, verbs, c.want)
			}
			return nil
		})
	}
}
