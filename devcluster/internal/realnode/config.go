// Package realnode is the first process of a real node of a devcluster. The node has
// namespaces of its own for processes, mounts, the network and control groups: killing its
// first process is the loss of its power, and all that remains is what is on its disk.
package realnode

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Config describes a node.
type Config struct {
	Name string `json:"name"`
	// Dir is the disk of the node: its files survive a loss of power.
	Dir string `json:"dir"`
	// CGroup is the control group of the node, below the root of each hierarchy.
	CGroup string `json:"cgroup"`
	// Programs are started when the network is there, in this order.
	Programs []Program `json:"programs"`
}

// Program is a program that runs on a node as a service does: it is started again a second
// after it has ended, unless it is held.
type Program struct {
	Name string   `json:"name"`
	Path string   `json:"path"`
	Args []string `json:"args"`
	Env  []string `json:"env"`
	Log  string   `json:"log"`
	// After is a file, such as a socket, that must exist before the program is started.
	After string `json:"after,omitempty"`
}

// Hold is the file that keeps a program from being started while it exists.
func (c *Config) Hold(program string) string { return filepath.Join(c.Dir, "hold-"+program) }

// Read reads the configuration of a node.
func Read(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of a node: %w", err)
	}
	c := &Config{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("decoding the configuration of a node: %w", err)
	}
	return c, nil
}

// Mount is where a node sees its directory. Programs use it: the names of their sockets must
// be short.
const Mount = "/run/node"

// RuncName is the name under which devcluster-node is a runc: see Runc.
const RuncName = "devcluster-runc"
