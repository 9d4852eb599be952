// Package walls holds no code, only a test: which package may import which,
// and why. docs/architecture.md describes the rooms that the walls divide.
//
// The linter (.golangci.yml, depguard) says the same of direct imports while
// one types; the test also sees what comes in through somebody else's import.
package walls
