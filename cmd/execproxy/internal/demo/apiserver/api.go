package apiserver

import (
	"encoding/json"
	"net/http"
	"time"
)

// The few Kubernetes types that go over the wire here, spelled out: the demonstration needs no code generation.

// Meta is metav1.ObjectMeta, as far as it is needed.
type Meta struct {
	Name              string            `json:"name,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	CreationTimestamp *time.Time        `json:"creationTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
}

// Pod is a pod with an opaque spec.
type Pod struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Meta            `json:"metadata"`
	Spec       json.RawMessage `json:"spec,omitempty"`
	Status     PodStatus       `json:"status"`
}

// PodStatus holds the phase alone.
type PodStatus struct {
	Phase string `json:"phase,omitempty"`
}

// PodList is what a list answers.
type PodList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   Meta   `json:"metadata"`
	Items      []Pod  `json:"items"`
}

// Event is one line of a watch.
type Event struct {
	Type   string `json:"type"`
	Object Pod    `json:"object"`
}

// Review is authentication.k8s.io/v1 SelfSubjectReview.
type Review struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Status     struct {
		UserInfo UserInfo `json:"userInfo"`
	} `json:"status"`
}

// UserInfo is who the API server takes a request's sender for.
type UserInfo struct {
	Username string              `json:"username"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// Status is metav1.Status, the shape of every refusal.
type Status struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Status     string `json:"status"`
	Message    string `json:"message,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Code       int    `json:"code"`
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // only a spec that is not JSON could do this, and create has refused it
		code, b = http.StatusInternalServerError, []byte(`{"apiVersion":"v1","kind":"Status","status":"Failure","code":500}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n'))
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	writeJSON(w, code, Status{APIVersion: "v1", Kind: "Status", Status: "Failure", Message: message, Reason: reason, Code: code})
}
