// Package chart tests the Helm chart of the project (charts/atoll): it renders it with
// Helm's own engine and reads the result as a Kubernetes API server and a kube-scheduler
// would. It also writes the result into one file for installations without Helm.
//
// It is a module of its own, so that neither Helm nor the API server's library is a
// dependency of the product. It does not import the product's Go code.
//
// The commands below it make what an installation needs: cmd/manifest the file with the objects
// of the chart, cmd/image the image.
package chart
