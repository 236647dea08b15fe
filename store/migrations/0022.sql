-- The samples of a policy's version: those of a step of training.
CREATE INDEX samples_policy ON samples(policy, run);
