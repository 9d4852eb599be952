package realnode

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// proxyRules has what kube-proxy uses of nftables.
const proxyRules = `table ip check {
	map services { type ipv4_addr . inet_proto . inet_service : verdict; }
	chain endpoint { meta l4proto tcp dnat to 192.0.2.1:80; }
	chain nat {
		type nat hook prerouting priority -100;
		fib daddr type local accept
		numgen random mod 2 vmap { 0: goto endpoint, 1: accept }
		ip daddr . meta l4proto . th dport vmap @services
	}
	chain leave { type nat hook postrouting priority 100; meta mark and 0x4000 != 0 masquerade fully-random; }
}
`

// CanUseNFT returns nil if nft can make the rules of kube-proxy, in a network of its own.
func CanUseNFT() error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(proxyRules)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kube-proxy needs nftables: %w: %s", err, out)
	}
	return nil
}
