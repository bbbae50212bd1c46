package processors

import "time"

// LetGroupsTakeTheirTime keeps a slow machine from ending groups early.
func (r *Runner) LetGroupsTakeTheirTime() { r.groupTime = time.Hour }
