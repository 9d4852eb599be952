package override

// tolerated is how many pods beyond its wanted number a workload may lose before IsRunaway.
// People remove pods from a workload by changing their labels, to debug them; some remove
// all pods at once.
const tolerated = 10

// IsRunaway reports whether a workload creates pods without end, because overrides make its
// pods unrecognizable to it. lost is the number of active pods that had overrides at
// creation and no longer belong to the workload. wants is the highest number of pods that
// the workload wanted, surge included, while there were any such pods.
//
// Rollouts, scaling and crashing pods do not count: a workload that recognizes its pods
// loses none.
func IsRunaway(lost, wants int) bool { return lost > wants+tolerated }
