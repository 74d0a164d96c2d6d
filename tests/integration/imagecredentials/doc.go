// Package imagecredentials has the tests of `execproxy image-credentials` under
// kubelet's own plugin manager, beside ECR's own provider, which the module in
// reference pins. It is a module of its own since that manager is in
// k8s.io/kubernetes.
package imagecredentials
