// Package walls has only tests. TestWalls checks which package may import which;
// docs/architecture.md describes these rules (walls) and the parts of the repository that they
// separate (rooms). The other tests check that the documents agree with the code.
//
// The linter (.golangci.yml, depguard) applies the same rules to direct imports. TestWalls
// also covers indirect imports, and explains each rule.
package walls
