"""The dispatcher: owns runs, hands out items, holds partial answers, writes results, moves runs from stage to stage."""
