// Package attack sends atoll-manager, on a real control plane, what a client that means harm
// could send to its ports, from several addresses of the loopback network, while a tenant
// creates workloads. make attack runs it: some minutes, and no traffic leaves the machine.
package attack
