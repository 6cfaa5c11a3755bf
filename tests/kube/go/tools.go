//go:build tools

// Package kube pins the Kubernetes commands of the test bed: go.mod and go.sum are the whole of it. The bed builds each
// command with `go build k8s.io/kubernetes/cmd/<name>`; see ../src/tools/kubernetes.rs for the flags and README.md for how the
// version is raised.
package kube

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
