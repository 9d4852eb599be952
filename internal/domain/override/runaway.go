package override

// spare is how many pods a workload may have given up beyond what it wants. A
// person takes a pod out of a workload by its labels, to look at it in peace;
// some take all of them out at once.
const spare = 10

// Runaway tells whether a workload makes pods without end. givenUp is the number
// of its pods that were overridden when they were created, are active, and are
// not their owner's any more; wants is the highest number of pods that the
// workload wanted, surge included, while there were any. A workload that finds
// its pods gives up none, however it is rolled out or scaled and however often
// its pods crash.
func Runaway(givenUp, wants int) bool { return givenUp > wants+spare }
