// Package chart tests the Helm chart of the project (charts/atoll): it renders
// it with Helm's own engine and reads what comes out the way a Kubernetes API
// server and a kube-scheduler would. It also writes what comes out into one
// file for those who have no Helm.
//
// It is a module of its own, so that neither Helm nor the API server's library
// is a dependency of the product. It knows nothing of the product's Go code.
package chart
