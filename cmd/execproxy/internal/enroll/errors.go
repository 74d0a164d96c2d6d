package enroll

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// DeniedError says that somebody denied the request. A new one may be made.
type DeniedError struct {
	Name            string
	Reason, Message string // of who denied it; one line each, maybe ""
}

func (e *DeniedError) Error() string {
	return "certificate signing request " + e.Name + " was denied" + words(e.Reason, e.Message) +
		": ask the cluster's administrator, and request again"
}

// FailedError says that the signer could or would not sign the approved request.
type FailedError struct {
	Name, SignerName string
	Reason, Message  string // of the signer; one line each, maybe ""
}

func (e *FailedError) Error() string {
	return "certificate signing request " + e.Name + " failed: signer " + e.SignerName + " refuses it" + words(e.Reason, e.Message)
}

func words(reason, message string) string {
	message = strings.TrimRight(message, ".")
	switch {
	case reason != "" && message != "":
		return ": " + reason + ": " + message
	case reason+message != "":
		return ": " + reason + message
	}
	return ""
}

// DeletedError says that the request is gone from the API, or another one has its name.
type DeletedError struct{ Name string }

func (e *DeletedError) Error() string {
	return "certificate signing request " + e.Name + " was deleted (pending requests are removed after 24 h): request again"
}

// CertificateError says that what the signer put into the request is of no use.
type CertificateError struct {
	Name    string // of the request
	Problem string // with the cure
}

func (e *CertificateError) Error() string {
	return "certificate of certificate signing request " + e.Name + ": " + e.Problem
}

// APIError is an answer of the API server that is none of those hoped for.
type APIError struct {
	Server  string // host and port
	Action  string // "creating certificate signing request NAME"
	Status  int    // of HTTP
	Reason  string // metav1.StatusReason; may be ""
	Message string // the server's, in one line
	Cure    string // may be ""

	named      string        // the object that is not there
	retryAfter time.Duration // 0: not said
}

func (e *APIError) Error() string {
	s := fmt.Sprintf("%s: %s: %s (HTTP %d)", e.Server, e.Action, e.Message, e.Status)
	if e.Cure != "" {
		s += ": " + e.Cure
	}
	return s
}

// temporary tells whether the same request may be answered otherwise a little later.
func (e *APIError) temporary() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusGone, http.StatusTooManyRequests:
		return true
	}
	return e.Status >= 500 && e.Status != http.StatusNotImplemented
}

// cure is what mends an answer; "" where its message says it all.
func cure(code int, message string) string {
	switch {
	case code == http.StatusUnauthorized:
		return "use credentials that this API server accepts (kubectl auth whoami tries them)"
	case code == http.StatusForbidden && strings.Contains(message, "system:masters"):
		return "no certificate for this group is to be had here: choose another organization, and bind the rights it needs to that group"
	case code == http.StatusForbidden:
		return forbiddenCure(message)
	case code == http.StatusNotFound || code == http.StatusMethodNotAllowed:
		return "it needs a Kubernetes API server of version 1.19 or later that serves certificates.k8s.io/v1"
	case code == http.StatusUnprocessableEntity && strings.Contains(message, "expirationSeconds"):
		return "ask for 10 minutes or more"
	case code == http.StatusUnprocessableEntity && strings.Contains(message, "signerName"):
		return "name the signer as DOMAIN/NAME, for instance " + SignerClient
	case code == http.StatusTooManyRequests || code >= 500:
		return "try again later"
	case code >= 200 && code < 400:
		return "is this a Kubernetes API server? Name the server itself"
	}
	return ""
}

// forbiddenCure reads whom the authorizer refused, from the message of RBAC and its like
// (apiserver's responsewriters.ForbiddenMessage), and grants it what enrolling needs.
func forbiddenCure(message string) string {
	_, user, found := strings.Cut(message, `User "`)
	quoted, err := strconv.QuotedPrefix(`"` + user)
	if !found || err != nil {
		return "a rule of the cluster refuses it: ask its administrator"
	}
	user, _ = strconv.Unquote(quoted)
	switch {
	case user == "system:anonymous":
		return "no credentials reached the API server: use some that it accepts"
	case user == "" || user != oneLine(user, 200):
		// What would not survive being copied is not to be run.
		user = "USER"
	}
	binding := "execproxy-enroll"
	if plain(user) && !strings.Contains(user, "/") {
		binding += ":" + user // so that it does not meet the next user's
	}
	return "an administrator grants it with: kubectl create clusterrole execproxy-enroll --verb=create,get,list,watch --resource=certificatesigningrequests.certificates.k8s.io; " +
		"kubectl create clusterrolebinding " + binding + " --clusterrole=execproxy-enroll --user=" + quote(user)
}

// ApproveCommand is what an administrator runs to approve a request.
func ApproveCommand(name string) string {
	return "kubectl certificate approve " + quote(name)
}

func plain(s string) bool {
	return s != "" && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:@/", r))
	}) < 0
}

// quote makes one word of a shell's: names come from servers.
func quote(s string) string {
	if plain(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// oneLine is a server's text fit for a terminal and a log: printable, one line, at most
// limit runes.
func oneLine(s string, limit int) string {
	var b strings.Builder
	n, space := 0, false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r) || unicode.IsControl(r):
			space = n > 0
			continue
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			continue
		}
		if n >= limit {
			return b.String() + "…"
		}
		if space {
			b.WriteByte(' ')
			n++
		}
		space = false
		b.WriteRune(r)
		n++
	}
	return b.String()
}
