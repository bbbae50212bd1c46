package console

import (
	"context"

	"github.com/gofiber/fiber/v2"

	"github.com/weirhq/weir/inbox"
)

// Work is what the console shows of the work that waits for people. *inbox.Store implements it.
type Work interface {
	FailureGroups(ctx context.Context, f inbox.FailureFilter) ([]inbox.FailureGroup, error)
	ReplayRuns(ctx context.Context, unfinished bool, limit int) ([]inbox.ReplayRun, error)
}

var _ Work = (*inbox.Store)(nil)

// failures lists the groups of FAILED deliveries as weir failures list --json does. Reasons are masked; no payload is shown.
func (s *Server) failures(c *fiber.Ctx) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CheckTimeout)
	defer cancel()
	groups, err := s.cfg.Work.FailureGroups(ctx, inbox.FailureFilter{Processor: string([]byte(c.Query("processor")))})
	if err != nil {
		return s.unavailable(err)
	}
	if groups == nil {
		groups = []inbox.FailureGroup{}
	}
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.JSON(fiber.Map{"failures": groups})
}

// replays lists the replays and backfills as weir events replay list --json does.
func (s *Server) replays(c *fiber.Ctx) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CheckTimeout)
	defer cancel()
	runs, err := s.cfg.Work.ReplayRuns(ctx, false, 0)
	if err != nil {
		return s.unavailable(err)
	}
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.JSON(fiber.Map{"runs": runs})
}

func (s *Server) unavailable(err error) error {
	s.cfg.Log.Warn().Err(err).Msg("console.failed")
	return fiber.ErrServiceUnavailable
}
